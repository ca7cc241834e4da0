//! `walpost run`.

use crate::{
    config::{Config, Env},
    error::Exit,
};

pub async fn run(_config: Config, _env: Env) -> anyhow::Result<Exit> {
    anyhow::bail!("not built yet")
}
