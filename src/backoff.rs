//! Pauses between attempts: exponential, capped, with full jitter, so that many publishers that
//! lost the same server don't come back at the same moment.
//! <https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/>

use std::time::Duration;

use rand::RngExt as _;

#[derive(Clone, Debug)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
    attempts: u32,
}

impl Backoff {
    /// The first pause is at most `base`, any pause at most `cap`.
    pub const fn new(base: Duration, cap: Duration) -> Self {
        Backoff {
            base,
            cap,
            attempts: 0,
        }
    }

    /// The next pause: anything from nothing to the bound, which doubles each time.
    pub fn pause(&mut self) -> Duration {
        let bound = self
            .base
            .saturating_mul(1 << self.attempts.min(20))
            .min(self.cap);
        self.attempts = self.attempts.saturating_add(1);
        rand::rng().random_range(Duration::ZERO..=bound)
    }

    /// It worked: the next pause is short again.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_cap_and_start_again() {
        let (base, cap) = (Duration::from_millis(100), Duration::from_secs(3));
        let mut backoff = Backoff::new(base, cap);
        let mut longest = Duration::ZERO;
        for attempt in 0..200 {
            let bound = base.saturating_mul(1 << attempt.min(20)).min(cap);
            let pause = backoff.pause();
            assert!(pause <= bound, "attempt {attempt}: {pause:?}");
            longest = longest.max(pause);
        }
        assert!(
            longest > cap / 2,
            "200 jittered pauses and none above half the cap: {longest:?}"
        );
        backoff.reset();
        assert!(backoff.pause() <= base);
    }
}
