//! Events, or bytes, per second over the last ten seconds.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

const SAMPLES: usize = 10;
const SAMPLE: Duration = Duration::from_secs(1);

pub struct Rate {
    total: u64,
    /// (moment, total then), a second apart.
    samples: VecDeque<(Instant, u64)>,
}

impl Default for Rate {
    fn default() -> Self {
        Rate {
            total: 0,
            samples: VecDeque::from([(Instant::now(), 0)]),
        }
    }
}

impl Rate {
    pub fn count(&mut self, more: u64) {
        self.total += more;
    }

    pub fn per_second(&mut self) -> f64 {
        let now = Instant::now();
        let newest = self.samples.back().map(|(at, _)| *at);
        if newest.is_none_or(|at| now.duration_since(at) >= SAMPLE) {
            self.samples.push_back((now, self.total));
            if self.samples.len() > SAMPLES {
                self.samples.pop_front();
            }
        }
        let Some((since, then)) = self.samples.front() else {
            return 0.0;
        };
        let seconds = now.duration_since(*since).as_secs_f64();
        // Less than a second says too little.
        if seconds < 1.0 {
            0.0
        } else {
            (self.total - then) as f64 / seconds
        }
    }
}
