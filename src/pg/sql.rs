//! Connections for SQL.

use std::future::poll_fn;

use tokio_postgres::{
    AsyncMessage, Client, Notification,
    config::{SslMode, SslNegotiation},
};
use tracing::debug;

use super::{
    conninfo::ConnInfo,
    failure::Refused,
    open::{Opened, open},
    socket::Reading,
    tls::Done,
};
use crate::error::Failure;

/// Besides what every connection pins: a paused publisher must not hold row locks for ever.
const IDLE_IN_TRANSACTION: &str = "-c idle_in_transaction_session_timeout=5s";
/// What lets a position pass must be on disk before it passes. Stronger settings stay.
const DURABLE: &str = "SELECT pg_catalog.set_config('synchronous_commit', 'on', false) \
    WHERE pg_catalog.current_setting('synchronous_commit') = 'off'";

/// A connection whose values are written the same way whatever the role's settings are, with
/// `search_path = pg_catalog`: names are qualified everywhere. It ends when the client is dropped.
pub async fn connect(info: &ConnInfo, application_name: &str) -> Result<Client, Failure> {
    connect_and_hear(info, application_name, |_| {}).await
}

/// The same; `hear` is called with each notification of what the session listens to.
pub async fn connect_and_hear(
    info: &ConnInfo,
    application_name: &str,
    hear: impl Fn(Notification) + Clone + Send + 'static,
) -> Result<Client, Failure> {
    open(info, Reading::AtOnce, |opened| {
        log_in(opened, application_name, hear.clone())
    })
    .await
}

async fn log_in(
    opened: Opened,
    application_name: &str,
    hear: impl Fn(Notification) + Send + 'static,
) -> Result<Client, Refused> {
    let Opened { stream, attempt } = opened;
    let info = &attempt.info;
    let mut config = tokio_postgres::Config::new();
    config
        .user(&info.user)
        .dbname(&info.database)
        .application_name(application_name)
        .options(format!("{} {IDLE_IN_TRANSACTION}", info.startup_options()))
        .channel_binding(info.channel_binding)
        // TLS is done: `Direct` keeps tokio_postgres from asking the server for it once more.
        .ssl_negotiation(SslNegotiation::Direct)
        .ssl_mode(if stream.is_tls() {
            SslMode::Require
        } else {
            SslMode::Disable
        });
    if let Some(password) = &attempt.password {
        config.password(password.text.reveal());
    }
    let (client, mut connection) = config
        .connect_raw(stream, Done)
        .await
        .map_err(|error| attempt.sql_refused(error))?;
    attempt.accepts(
        connection.parameter("in_hot_standby"),
        connection.parameter("default_transaction_read_only"),
    )?;
    let name = application_name.to_string();
    let host = attempt.host.clone();
    tokio::spawn(async move {
        while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
            match message {
                Ok(AsyncMessage::Notification(notification)) => hear(notification),
                Ok(_) => {}
                Err(error) => {
                    debug!(%host, application_name = name, "connection ended: {:#}", anyhow::Error::from(error));
                    return;
                }
            }
        }
    });
    client
        .simple_query(DURABLE)
        .await
        .map_err(|error| attempt.sql_refused(error))?;
    Ok(client)
}
