//! The text of `/metrics`.

use super::*;
use crate::{lsn::Lsn, pg::slot::tests::facts, state::LetterCounts};

#[test]
fn what_is_known_is_told_and_the_rest_left_out() {
    let (metrics, state) = (Metrics::new(), State::default());
    let topic = metrics.topic("a");
    topic.inc();
    metrics.topic("a").inc();
    metrics.latency.observe(0.3);
    metrics.restart("connection lost");
    metrics.delivery_failure("event", "MSG_SIZE_TOO_LARGE");
    metrics.copy_failure("_MESSAGE_TIMED_OUT");
    let text = metrics.text(&state);
    for line in [
        "walpost_events_published_total{topic=\"a\"} 2",
        "walpost_published_bytes_total 0",
        "walpost_publish_latency_seconds_count 1",
        "walpost_restarts_total{reason=\"connection lost\"} 1",
        "walpost_delivery_failures_total{class=\"event\",code=\"MSG_SIZE_TOO_LARGE\"} 1",
        "walpost_duplicates_possible_total 0",
        "walpost_dead_letter_copy_failures_total{code=\"_MESSAGE_TIMED_OUT\"} 1",
        "walpost_role{role=\"publisher\"} 0",
        "walpost_in_flight_rows 0",
        "walpost_oldest_unpublished_seconds 0.0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    assert!(
        !text.contains("received_lsn") && !text.contains("slot_") && !text.contains("dead_letters"),
        "{text}"
    );

    let mut now = state.lock();
    now.role = Role::Publisher;
    now.received = Some(Lsn::new(4096));
    now.slot = Some((facts(), std::time::Instant::now()));
    now.dead_letters = Some(LetterCounts {
        held: 7,
        ..LetterCounts::default()
    });
    now.held_keys = Some(2);
    drop(now);
    let text = metrics.text(&state);
    for line in [
        "walpost_dead_letters{status=\"held\"} 7",
        "walpost_dead_letters{status=\"dead\"} 0",
        "walpost_held_keys 2",
        "walpost_role{role=\"publisher\"} 1",
        "walpost_received_lsn_bytes 4096",
        "walpost_slot_confirmed_lag_bytes 256",
        "walpost_slot_retained_wal_bytes 512",
        "walpost_slot_active 1",
        "walpost_slot_wal_status{status=\"reserved\"} 1",
        "walpost_slot_wal_status{status=\"lost\"} 0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("safe_wal_size"), "{text}");
}

#[test]
fn the_readme_lists_every_metric() {
    let (metrics, state) = (Metrics::new(), State::default());
    let mut now = state.lock();
    let mut facts = facts();
    facts.slot.as_mut().unwrap().safe_wal_size = Some(1);
    now.slot = Some((facts, std::time::Instant::now()));
    (now.received, now.confirmed) = (Some(Lsn::new(1)), Some(Lsn::new(1)));
    now.last_server_message = Some(std::time::Instant::now());
    (now.dead_letters, now.held_keys) = (Some(LetterCounts::default()), Some(0));
    drop(now);
    let readme = include_str!("../../README.md");
    let text = metrics.text(&state);
    let names = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let missing: Vec<_> = names.filter(|name| !readme.contains(*name)).collect();
    assert_eq!(missing, [""; 0]);
}
