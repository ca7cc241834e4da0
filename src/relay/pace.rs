//! So many rows a second, evenly; what was not used is not made up for.

use std::{num::NonZeroU32, time::Instant};

/// Rows of so much time may go at once: what drives it looks ten times as often.
const BURST_SECONDS: f64 = 0.1;

pub struct Pace {
    per_second: Option<f64>,
    /// Rows that may go now, at most a burst.
    ready: f64,
    since: Instant,
}

impl Pace {
    /// `None`: as fast as it goes.
    pub fn new(per_second: Option<NonZeroU32>, now: Instant) -> Pace {
        Pace {
            per_second: per_second.map(|rate| f64::from(rate.get())),
            ready: 1.0,
            since: now,
        }
    }

    /// Takes the place of one more row, if there is one now.
    pub fn takes(&mut self, now: Instant) -> bool {
        let Some(per_second) = self.per_second else {
            return true;
        };
        let passed = now.saturating_duration_since(self.since).as_secs_f64();
        self.since = now;
        let burst = (per_second * BURST_SECONDS).max(1.0);
        self.ready = (self.ready + passed * per_second).min(burst);
        let takes = self.ready >= 1.0;
        if takes {
            self.ready -= 1.0;
        }
        takes
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn count(pace: &mut Pace, at: Instant) -> usize {
        (0..100_000).take_while(|_| pace.takes(at)).count()
    }

    #[test]
    fn rows_are_spread_and_a_pause_is_not_made_up_for() {
        let start = Instant::now();
        let mut pace = Pace::new(NonZeroU32::new(200), start);
        let ms = |ms| start + Duration::from_millis(ms);
        let rows = (0..=20)
            .map(|n| count(&mut pace, ms(50 * n)))
            .sum::<usize>();
        assert!((200..=201).contains(&rows), "{rows} in a second");
        assert_eq!(count(&mut pace, ms(60_000)), 20);
        let mut slow = Pace::new(NonZeroU32::new(2), start);
        let rows = (0..=100)
            .map(|n| count(&mut slow, ms(50 * n)))
            .sum::<usize>();
        assert!((10..=11).contains(&rows), "{rows} in five seconds");
        assert_eq!(count(&mut Pace::new(None, start), start), 100_000);
    }
}
