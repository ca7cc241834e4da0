//! Reads the command line, starts the log, runs one command and exits with its code.

use std::process::ExitCode;

use clap::Parser;
use walpost::{cli::Cli, commands, config::Env, error::Exit, logging};

/// The Kafka client's too, where the platform has it so: each record has a dozen allocations there that
/// another thread frees, which takes glibc's allocator twice the time.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Its configuration, read by this name as a C string: memory follows neither the number of cores nor
/// what was in flight a while ago. Variable `MALLOC_CONF` has the last word.
#[unsafe(export_name = "malloc_conf")]
static ALLOCATOR_SETTINGS: &[u8; 62] =
    b"narenas:2,dirty_decay_ms:200,muzzy_decay_ms:0,tcache_max:4096\0";

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
