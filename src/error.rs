//! What to do about a failure: wait and try again, or stop with an exit code. No I/O.

use std::fmt;

/// How the process ends; the numbers are the contract with scripts and service managers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// Unexpected error, cannot connect, missing rights, fenced by another writer.
    Error = 1,
    /// Usage or configuration, or a `walpost` schema of another version.
    Usage = 2,
    /// `check` or `audit` found failures.
    Findings = 3,
    /// The operator must act on the slot or the publication.
    Slot = 4,
    /// Stopped by policy: a poison event.
    Policy = 5,
    /// A grace or a timeout ended first.
    Grace = 6,
}

/// The end of a command: what happened, to whom, what to do next, and the exit code.
/// Rides in an `anyhow` chain; `Exit::of` finds it there.
#[derive(Debug)]
pub struct Stop {
    pub exit: Exit,
    pub cause: anyhow::Error,
}

impl Stop {
    pub fn new(exit: Exit, cause: impl Into<anyhow::Error>) -> Self {
        Stop {
            exit,
            cause: cause.into(),
        }
    }
}

/// A `Stop` from a formatted message: `stop!(Exit::Slot, "slot {slot} is missing; …")`.
#[macro_export]
macro_rules! stop {
    ($exit:expr, $($message:tt)+) => {
        $crate::error::Stop::new($exit, anyhow::anyhow!($($message)+))
    };
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.cause)
    }
}

impl std::error::Error for Stop {}

impl Exit {
    /// The exit code that an error asks for; 1 when it asks for none.
    pub fn of(error: &anyhow::Error) -> Exit {
        error
            .chain()
            .find_map(|e| e.downcast_ref::<Stop>())
            .map_or(Exit::Error, |stop| stop.exit)
    }
}

/// A failure of the stream or of a connection, sorted by what to do. What isn't known is passing.
#[derive(Debug)]
pub enum Failure {
    /// Wait and try again, without limit.
    Passing(anyhow::Error),
    /// Retrying cannot help: end with this exit code.
    Stop(Stop),
}

impl From<Stop> for Failure {
    fn from(stop: Stop) -> Self {
        Failure::Stop(stop)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Passing(error) => write!(f, "{error:#}"),
            Failure::Stop(stop) => stop.fmt(f),
        }
    }
}

impl From<Failure> for anyhow::Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Passing(error) => error,
            Failure::Stop(stop) => stop.into(),
        }
    }
}
