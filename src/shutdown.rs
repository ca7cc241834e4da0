//! Signals → two tokens: the first SIGTERM or SIGINT asks to finish, the second one to end at once.

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

#[derive(Clone, Default)]
pub struct Shutdown {
    /// Finish what is open, flush, confirm, end.
    pub requested: CancellationToken,
    /// End at once; what is not confirmed will be sent again.
    pub forced: CancellationToken,
}

impl Shutdown {
    /// Listens to the process's signals from now on.
    pub fn on_signals() -> anyhow::Result<Self> {
        let shutdown = Shutdown::default();
        let mut terminate = signal(SignalKind::terminate()).context("listen to SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("listen to SIGINT")?;
        let tokens = shutdown.clone();
        tokio::spawn(async move {
            loop {
                let name = tokio::select! {
                    _ = terminate.recv() => "SIGTERM",
                    _ = interrupt.recv() => "SIGINT",
                };
                if tokens.requested.is_cancelled() {
                    warn!(signal = name, "second signal: ending at once");
                    tokens.forced.cancel();
                } else {
                    info!(signal = name, "stopping");
                    tokens.requested.cancel();
                }
            }
        });
        Ok(shutdown)
    }
}
