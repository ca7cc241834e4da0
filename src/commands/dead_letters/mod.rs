//! `walpost dead-letters`: what operators see and do. The SQL functions decide; this selects letters
//! and tells what came of it.

mod act;
mod list;
mod show;

use tokio_postgres::Client;

use crate::{
    cli::dead_letters::{DeadLetters, Selectors, Verb},
    config::{Config, Env},
    error::Exit,
    pg::{
        conninfo::ConnInfo,
        letters::{Selection, prepare, trouble},
        sql,
    },
};

pub async fn dead_letters(
    config: &Config,
    env: &Env,
    options: &DeadLetters,
) -> anyhow::Result<Exit> {
    let info = ConnInfo::resolve(&config.postgres, env)?;
    let client = sql::connect(&info, "walpost:dead-letters").await?;
    let slot = config.postgres.slot.clone();
    prepare(&client, &info, &slot).await?;
    let desk = Desk { client, info, slot };
    match &options.verb {
        Verb::List(options) => desk.list(options).await,
        Verb::Show(options) => desk.show(options).await,
        Verb::Replay(options) => desk.replay(options).await,
        Verb::Ignore(options) => desk.ignore(options).await,
        Verb::Resend(options) => desk.resend(options).await,
    }
}

/// Where an operator works: a connection and a slot.
struct Desk {
    client: Client,
    info: ConnInfo,
    slot: String,
}

impl Desk {
    fn selection(&self, selectors: &Selectors) -> Selection {
        let some = |list: &Vec<_>| (!list.is_empty()).then(|| list.clone());
        Selection {
            slot: self.slot.clone(),
            ids: (!selectors.ids.is_empty()).then(|| selectors.ids.clone()),
            event_id: selectors.event_id.clone(),
            key: selectors.key.clone(),
            topic: selectors.topic.clone(),
            code: selectors.code.clone(),
            statuses: some(&selectors.status),
            since: selectors.since,
            until: selectors.until,
            limit: selectors.limit,
        }
    }

    fn trouble(&self, error: tokio_postgres::Error) -> anyhow::Error {
        trouble(error, &self.info)
    }
}
