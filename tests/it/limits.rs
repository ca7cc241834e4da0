//! Bounds: what is in flight, memory, time.

use crate::harness::{Scene, always, kafka_server::Breakable, until};

#[test]
fn a_transaction_of_300_000_rows_through_a_slow_broker_needs_one_connection_and_little_memory() {
    let way = Breakable::take();
    let scene = Scene::behind(&way);
    scene.publisher_setting("wal_sender_timeout", "'5s'");
    let mut walpost = scene.ready(3);
    walpost.set("kafka.properties.compression.type", "none");
    let mut run = scene.started(&walpost);
    let walsender = scene.walsender();
    // About 70 MB of records: more than three times the server's patience.
    way.proxy().throttle(4_000_000);
    scene.sql.run(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
         SELECT 'order', 'k' || i % 100, 'T', jsonb_build_object('seq', i, 'pad', repeat('x', 30)) FROM generate_series(1, 300000) i",
    );
    let target = scene.current_lsn();
    // The peak is read while it lives.
    let peak = until("the transaction is confirmed", 120, || {
        run.assert_alive();
        let peak = run.peak_memory();
        (scene.confirmed() >= target).then_some(peak)
    });
    println!("peak {} MiB", peak >> 20);
    assert!(peak < 160 << 20, "peak {} MiB", peak >> 20);
    assert_eq!(
        scene.walsender(),
        walsender,
        "connected to PostgreSQL again"
    );
    way.proxy().forward();
    scene.judge_once(300_000);
}

#[test]
fn big_rows_are_bounded_by_bytes() {
    let way = Breakable::take();
    let scene = Scene::behind(&way);
    let mut walpost = scene.ready(3);
    walpost
        .set("kafka.properties.compression.type", "none")
        .set("delivery.in_flight_bytes", "8MiB");
    scene.sql.run(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
         SELECT 'order', 'k' || i % 10, 'T', jsonb_build_object('seq', i, 'pad', repeat('x', 100000)) FROM generate_series(1, 1000) i",
    );
    let mut run = scene.started(&walpost);
    way.proxy().throttle(20_000_000);
    let target = scene.current_lsn();
    let peak = until("the rows are confirmed", 60, || {
        run.assert_alive();
        let peak = run.peak_memory();
        let bytes = walpost
            .metric("walpost_in_flight_bytes", "")
            .unwrap_or_default();
        assert!(bytes <= f64::from(8 << 20), "{bytes} bytes in flight");
        (scene.confirmed() >= target).then_some(peak)
    });
    println!("peak {} MiB", peak >> 20);
    assert!(peak < 120 << 20, "peak {} MiB", peak >> 20);
    way.proxy().forward();
    scene.judge_once(1_000);
}

#[test]
fn a_row_over_the_byte_limit_is_sent_alone() {
    let scene = Scene::new();
    let mut walpost = scene.ready(1);
    walpost
        .set("delivery.in_flight_bytes", "10KiB")
        .set("delivery.in_flight_rows", 2);
    let _run = scene.started(&walpost);
    for pad in [10, 200_000, 10, 200_000, 200_000] {
        scene.sql.run(&scene.rows("a", 3, pad));
    }
    scene.judge_once(15);
}

#[test]
fn with_kafka_gone_no_more_than_the_limit_is_in_flight_and_nothing_is_lost() {
    let way = Breakable::take();
    let scene = Scene::behind(&way);
    let mut walpost = scene.ready(3);
    walpost.set("delivery.in_flight_rows", 100);
    let mut run = scene.started(&walpost);
    let walsender = scene.walsender();
    scene.insert("a", 1);
    scene.wait_confirmed(60);
    way.proxy().refuse();
    scene.sql.run(&scene.rows("a", 5_000, 20));
    until("100 rows are in flight", 60, || {
        (walpost.metric("walpost_in_flight_rows", "")? == 100.0).then_some(())
    });
    always("at most 100 rows in flight", 4, || {
        walpost
            .metric("walpost_in_flight_rows", "")
            .is_some_and(|rows| rows <= 100.0)
    });
    run.assert_alive();
    way.proxy().forward();
    scene.judge(5_001);
    assert_eq!(scene.walsender(), walsender);
}

#[test]
fn a_row_of_50_mb_is_sent_alone_within_a_memory_bound() {
    let scene = Scene::new();
    scene.create_table("text");
    scene.create_topic("order", 1, &[("max.message.bytes", "80000000")]);
    let mut walpost = scene.walpost();
    walpost.set("kafka.properties.message.max.bytes", 80_000_000);
    walpost.init();
    let mut run = scene.started(&walpost);
    let row = |megabytes: u64| {
        let payload = format!("repeat('0123456789', {})", megabytes * 100_000);
        scene.insert_row(&[("payload", &payload)])
    };
    let ids = [row(0), row(50), row(0)];
    let target = scene.current_lsn();
    let peak = until("the row is confirmed", 60, || {
        run.assert_alive();
        let peak = run.peak_memory();
        (scene.confirmed() >= target).then_some(peak)
    });
    println!("peak {} MiB", peak >> 20);
    // Once from the socket, once in the ledger, once in the client, and its compressed form.
    assert!(peak < 320 << 20, "peak {} MiB", peak >> 20);
    let records = scene.records();
    let sizes: Vec<_> = records
        .iter()
        .map(|r| (r.event_id(), r.value.as_ref().map_or(0, Vec::len)))
        .collect();
    assert_eq!(
        sizes,
        [(&*ids[0], 0), (&*ids[1], 50_000_000), (&*ids[2], 0)]
    );
}
