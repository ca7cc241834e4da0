//! One file per command.

mod backfill;
pub mod check;
mod dead_letters;
pub mod drain;
pub mod init;
pub mod preview;
pub mod recover;
pub mod replay;
pub mod run;
mod say;
pub mod skip;
pub mod status;
pub mod uninstall;

use crate::{
    cli::{Cli, Command},
    config::{self, Env},
    error::Exit,
};

/// Runs the command that was asked for. Its results are on stdout; the caller prints the error.
pub async fn execute(cli: Cli, env: Env) -> anyhow::Result<Exit> {
    let (config, settings) = config::load_with_origins(cli.config.as_deref(), &env)?;
    match cli.command {
        Command::Init(options) => init::init(&config, &env, &options).await,
        Command::Recover(options) => recover::recover(&config, &env, &options).await,
        Command::Preview(options) => preview::preview(&config, &env, &options).await,
        Command::Check(options) => check::check(&config, &env, &settings, &options).await,
        Command::Run => run::run(config, env).await,
        Command::Status(options) => status::status(&config, &env, &options).await,
        Command::Drain(options) => drain::drain(&config, &env, &options).await,
        Command::DeadLetters(options) => dead_letters::dead_letters(&config, &env, &options).await,
        Command::Replay(options) => replay::replay(&config, &env, &options).await,
        Command::Skip(options) => skip::skip(&config, &env, &options).await,
        Command::Uninstall(options) => uninstall::uninstall(&config, &env, &options).await,
    }
}
