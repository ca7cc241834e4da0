//! Deliberate faults, compiled in by the feature `faults` alone: `scripts/torture --prove` shows that
//! each of them is found. The variable `FAULT` names the one that is on.

use std::sync::LazyLock;

/// A row lets the slot pass as soon as it is enqueued.
pub const CONFIRM_BEFORE_DELIVERY: &str = "confirm-before-delivery";
/// A keepalive's position is confirmed although rows are open.
pub const CONFIRM_KEEPALIVES: &str = "confirm-keepalives";
/// A record that was not delivered counts as delivered.
pub const DROP_OUTCOME: &str = "drop-outcome";

pub fn is_on(fault: &str) -> bool {
    static FAULT: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("FAULT").ok());
    FAULT.as_deref() == Some(fault)
}
