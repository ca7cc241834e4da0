//! `walpost check`: all that can be known before it goes wrong, of PostgreSQL and of Kafka, each with
//! what mends it. Changes nothing.

mod finding;
mod kafka;
mod origins;
mod rows;
mod server;
mod slot;
mod table;
mod topic;

use std::{future::Future, time::Duration};

use anyhow::anyhow;
use tokio::time::timeout;
use tokio_postgres::Client;

use self::{finding::Findings, rows::AtHand};
use crate::{
    cli,
    config::{Config, Env, Setting},
    error::Exit,
    outbox::mapping::mappings,
    pg::{conninfo::ConnInfo, quote, replication, slot::Names, sql},
};

const APPLICATION: &str = "walpost:check";

/// A server that has not answered by then is not waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// `settings` are the values that are set, with where.
pub async fn check(
    config: &Config,
    env: &Env,
    settings: &[Setting],
    options: &cli::Check,
) -> anyhow::Result<Exit> {
    let names = Names::of(config)?;
    let info = ConnInfo::resolve(&config.postgres, env)?;
    let mut findings = Findings::new(options.json);
    origins::tell(config, env, settings, &info, &mut findings)?;
    let mut at_hand = AtHand::default();
    for mapping in mappings(config)? {
        match mapping.route.flaw() {
            None => at_hand.expect(&mapping),
            Some(flaw) => {
                let (table, fix) = (quote::table(&mapping.table), "correct its `topic`");
                let message = format!("table {table}: no row of it can have a topic: {flaw}");
                findings.fail("config.topic", &table, message, fix);
            }
        }
    }
    if let Some(client) = connect(&info, &mut findings).await {
        let facts = slot::check(&client, &info, &names, &mut findings).await;
        table::check(config, &info, &names, facts, &mut at_hand, &mut findings).await?;
    }
    kafka::check(config, &at_hand, &mut findings).await;
    Ok(match findings.end()? {
        true => Exit::Findings,
        false => Exit::Done,
    })
}

/// Both kinds of connection.
async fn connect(info: &ConnInfo, findings: &mut Findings) -> Option<Client> {
    const MEND: &str = "correct `postgres.url` or what refuses it there";
    let hosts: Vec<_> = info.hosts.iter().map(ToString::to_string).collect();
    let server = hosts.join(", ");
    let client = match within(sql::connect(info, APPLICATION)).await {
        Ok(client) => client,
        Err(error) => {
            let message = format!("server {server}: {error:#}");
            findings.fail("postgres.connect", &server, message, MEND);
            return None;
        }
    };
    let message = format!(
        "server {server}: connected to database {} as role {}",
        info.database, info.user
    );
    findings.pass("postgres.connect", &server, message);
    match within(replication::connect(info, APPLICATION)).await {
        Ok(_) => {
            let message = format!("server {server}: role {} may replicate", info.user);
            findings.pass("postgres.replication", &server, message);
        }
        Err(error) => {
            let message = format!("server {server}: no replication connection: {error:#}");
            let fix = "let the role replicate, let pg_hba.conf take it for this database, and leave a pooler out";
            findings.fail("postgres.replication", &server, message, fix);
        }
    }
    Some(client)
}

/// An answer, or that there is none in time.
async fn within<T, E: Into<anyhow::Error>>(
    work: impl Future<Output = Result<T, E>>,
) -> anyhow::Result<T> {
    match timeout(PATIENCE, work).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => Err(anyhow!("no answer within {} s", PATIENCE.as_secs())),
    }
}
