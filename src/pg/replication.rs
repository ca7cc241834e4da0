//! Replication connections: log in where `conninfo` says, then `wire` takes over.

use tokio_postgres::config::ChannelBinding;

use super::{
    conninfo::ConnInfo,
    failure::Refused,
    open::{Opened, open},
    socket::Reading,
    tls::Stream,
    wire::{Replication, StartUp},
};
use crate::error::Failure;

/// A connection in replication mode with the start-up parameters that every connection pins.
pub async fn connect(
    info: &ConnInfo,
    application_name: &str,
) -> Result<Replication<Stream>, Failure> {
    open(info, Reading::Gathered, |opened| {
        log_in(opened, application_name)
    })
    .await
}

async fn log_in(opened: Opened, application_name: &str) -> Result<Replication<Stream>, Refused> {
    let Opened { stream, attempt } = opened;
    let info = &attempt.info;
    let mut parameters = info.startup_parameters();
    parameters.push(("application_name".into(), application_name.into()));
    let start = StartUp {
        parameters: &parameters,
        user: &info.user,
        password: attempt
            .password
            .as_ref()
            .map(|password| password.text.reveal()),
        channel_binding: match info.channel_binding {
            ChannelBinding::Disable => None,
            _ => stream.certificate_digest(),
        },
        require_channel_binding: info.channel_binding == ChannelBinding::Require,
    };
    let refused = |failure| attempt.replication_refused(failure);
    let mut connection = Replication::start_up(stream, start)
        .await
        .map_err(refused)?;
    if attempt.asks_for_role() {
        const ROLE: &str = "SELECT pg_catalog.current_setting('in_hot_standby'), \
            pg_catalog.current_setting('default_transaction_read_only')";
        let rows = connection.simple_query(ROLE).await.map_err(refused)?;
        let value = |at: usize| rows.first().and_then(|row| row.get(at)?.as_deref());
        attempt.accepts(value(0), value(1))?;
    }
    Ok(connection)
}
