//! How many events failed by their own fault of late: when everything fails, something else is
//! wrong, and the publisher stops before it has parked everything.

use std::{collections::VecDeque, time::Duration};

/// Told of an event that failed, with its text: the first ones say what is wrong.
#[derive(Debug)]
pub struct Guard {
    /// More than this many within `within` are too many.
    count: usize,
    within: Duration,
    /// When the events of this time failed, in milliseconds since 1970.
    failed: VecDeque<i64>,
    first: Vec<String>,
}

/// What is told of a guard that stopped the publisher.
const TOLD: usize = 3;

impl Guard {
    pub fn new(count: u64, within: Duration) -> Self {
        Guard {
            count: usize::try_from(count).unwrap_or(usize::MAX),
            within,
            failed: VecDeque::new(),
            first: Vec::new(),
        }
    }

    /// Notes one more; `true`: it is one too many.
    pub fn fails(&mut self, now: jiff::Timestamp, what: impl FnOnce() -> String) -> bool {
        let now = now.as_millisecond();
        let since = now - i64::try_from(self.within.as_millis()).unwrap_or(i64::MAX);
        while self.failed.front().is_some_and(|at| *at < since) {
            self.failed.pop_front();
        }
        if self.failed.is_empty() {
            self.first.clear();
        }
        self.failed.push_back(now);
        if self.first.len() < TOLD {
            self.first.push(what());
        }
        self.failed.len() > self.count
    }

    /// Why the publisher stops.
    pub fn text(&self) -> String {
        format!(
            "more than {} events failed within {} s (dead_letters.guard); the first ones: {}",
            self.count,
            self.within.as_secs(),
            self.first.join("; ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_more_than_the_count_within_the_time_are_too_many() {
        let mut guard = Guard::new(2, Duration::from_secs(60));
        let mut fails = |second: i64| {
            let now = jiff::Timestamp::from_second(second).unwrap();
            guard.fails(now, || format!("at {second}"))
        };
        assert!(!fails(0) && !fails(1));
        assert!(!fails(62), "the first two are past");
        assert!(!fails(63) && fails(64));
        assert!(
            guard
                .text()
                .contains("more than 2 events failed within 60 s")
        );
    }
}
