//! Reads the command line, starts the log, runs one command and exits with its code.

use std::process::ExitCode;

use clap::Parser;
use walpost::{cli::Cli, commands, config::Env, error::Exit, logging};

fn main() -> ExitCode {
    let cli = Cli::parse();
    logging::start(cli.log_format, cli.log_level);
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| {
            let outcome = runtime.block_on(commands::execute(cli, Env::of_process()));
            // A name look-up that hangs must not keep the process from ending.
            runtime.shutdown_background();
            outcome
        });
    let exit = outcome.unwrap_or_else(|error| {
        tracing::error!("{error:#}");
        Exit::of(&error)
    });
    ExitCode::from(exit as u8)
}
