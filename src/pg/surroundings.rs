//! What of the server around the slot may do harm, now or one day. Looked at by `check` alone.

use serde::Deserialize;
use tokio_postgres::{Client, types::Type};

use super::slot::FromJson;

#[derive(Clone, Debug, Deserialize)]
pub struct Surroundings {
    pub wal_level: String,
    pub max_replication_slots: i64,
    /// Those that are there.
    pub slots: i64,
    /// In milliseconds; 0: none.
    pub wal_sender_timeout: i64,
    /// In megabytes; -1: no limit.
    pub max_slot_wal_keep_size: i64,
    /// Tables of schema `walpost` that this role may not read and write.
    pub denied: Vec<String>,
    /// Tables whose updates and deletes are refused because of the publication; the first twenty.
    pub keyless: Vec<String>,
}

impl Surroundings {
    pub async fn look(
        client: &Client,
        publication: &str,
    ) -> Result<Surroundings, tokio_postgres::Error> {
        let text = include_str!("../../sql/surroundings.sql");
        let rows = client
            .query_typed(text, &[(&publication, Type::TEXT)])
            .await?;
        rows[0]
            .try_get(0)
            .map(|FromJson(surroundings)| surroundings)
    }
}
