//! Log lines on stderr. Results go to stdout, so the two never mix.

use std::io::{self, IsTerminal};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::{Layer, filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

use crate::cli::{LogFormat, LogLevel};

/// Libraries whose lines below `info` may hold what is nobody's business: tokio-postgres logs
/// statements with their parameters, rdkafka the client's configuration, hyper what it reads.
const DISCREET: [&str; 4] = ["tokio_postgres", "rdkafka", "librdkafka", "hyper"];

/// Call it once, before anything is logged.
pub fn start(format: LogFormat, level: LogLevel) {
    let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let layer = match format {
        LogFormat::Text => layer.with_ansi(io::stderr().is_terminal()).boxed(),
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry()
        .with(layer)
        .with(filter(level.into()))
        .init();
    std::panic::set_hook(Box::new(|panic| {
        let backtrace = std::backtrace::Backtrace::capture();
        tracing::error!(%panic, %backtrace, "internal error");
    }));
}

fn filter(level: LevelFilter) -> Targets {
    let discreet = DISCREET.map(|target| (target, level.min(LevelFilter::INFO)));
    Targets::new().with_default(level).with_targets(discreet)
}

impl From<LogLevel> for LevelFilter {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn libraries_never_say_more_than_info() {
        let trace = filter(LevelFilter::TRACE);
        assert!(trace.would_enable("walpost::relay", &Level::TRACE));
        for library in [
            "tokio_postgres::query",
            "rdkafka::client",
            "librdkafka",
            "hyper::proto::h1",
        ] {
            assert!(
                trace.would_enable(library, &Level::INFO)
                    && !trace.would_enable(library, &Level::DEBUG),
                "{library}"
            );
        }
        assert!(!filter(LevelFilter::ERROR).would_enable("tokio_postgres", &Level::INFO));
    }
}
