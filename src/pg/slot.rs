//! What the server says about our slot, publication, table and bookkeeping: one query.
//! `status`, the metrics and the publisher's regular check all read it.

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use tokio_postgres::{
    Client,
    types::{FromSql, Type},
};

pub use super::verdict::verdict;
use super::{quote::table, verdict::MISSED_AFTER};
use crate::{
    config::{Config, TableName},
    error::Stop,
    lsn::Lsn,
    outbox::mapping::{Mapping, mappings},
};

/// What the configuration calls the things that are watched.
#[derive(Clone, Debug)]
pub struct Names {
    pub slot: String,
    pub publication: String,
    /// The outbox tables, in the order of the configuration.
    pub tables: Vec<Outbox>,
    /// The slot is to be one that standbys keep in step.
    pub failover: bool,
}

/// A configured table.
#[derive(Clone, Debug)]
pub struct Outbox {
    pub table: TableName,
    /// Its columns that become something, by name.
    pub columns: Vec<String>,
}

impl Outbox {
    fn of(mapping: &Mapping) -> Outbox {
        let mut columns: Vec<String> = Vec::new();
        for column in mapping.columns() {
            if !columns.iter().any(|c| c == column) {
                columns.push(column.to_owned());
            }
        }
        Outbox {
            table: mapping.table.clone(),
            columns,
        }
    }
}

impl Names {
    /// Of a configuration that was loaded, so that has a table.
    pub fn of(config: &Config) -> Result<Names, Stop> {
        let mappings = mappings(config)?;
        Ok(Names {
            slot: config.postgres.slot.clone(),
            publication: config.postgres.publication.clone(),
            tables: mappings.iter().map(|mapping| Outbox::of(mapping)).collect(),
            failover: config.postgres.failover_slot,
        })
    }

    /// The tables' names as SQL and people read them.
    pub fn tables(&self) -> Vec<String> {
        let tables = self.tables.iter();
        tables.map(|outbox| table(&outbox.table)).collect()
    }

    /// All of them in one text.
    pub fn listed(&self) -> String {
        self.tables().join(", ")
    }
}

/// One look at the server; everything in it is of the same moment but for `pg_stat_*`.
#[derive(Clone, Debug, Deserialize)]
pub struct SlotFacts {
    /// The server's clock.
    pub now: Timestamp,
    pub database: String,
    pub server: Server,
    /// `None`: there is no slot of that name in the cluster.
    pub slot: Option<Slot>,
    /// Who reads the slot.
    pub holder: Option<Holder>,
    /// The configured tables, in the order of `Names`.
    pub tables: Vec<Found>,
    /// `None`: no publication of that name in the database.
    pub publication: Option<Publication>,
    /// Of the `walpost` schema; `None` where `init` never ran.
    pub schema_version: Option<i32>,
    /// Our row in `walpost.slot`.
    pub record: Option<Record>,
    /// Where the newest mark is; looked for where [`SlotFacts::is_promoted`] alone.
    #[serde(default)]
    pub newest_mark: Option<Lsn>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Server {
    /// Such as `15.18`.
    pub version: String,
    /// Such as 150018.
    pub version_num: i32,
    pub system_identifier: String,
    pub timeline: u32,
    pub in_recovery: bool,
    /// Where WAL is written; on a standby, up to where it was received.
    pub wal_lsn: Option<Lsn>,
    pub synchronous_standby_names: String,
}

/// A row of `pg_replication_slots`.
/// <https://www.postgresql.org/docs/current/view-pg-replication-slots.html>
#[derive(Clone, Debug, Deserialize)]
pub struct Slot {
    /// `None` on a physical slot.
    pub plugin: Option<String>,
    pub database: Option<String>,
    pub active: bool,
    pub active_pid: Option<i32>,
    pub confirmed_flush_lsn: Option<Lsn>,
    pub restart_lsn: Option<Lsn>,
    /// `reserved`, `extended`, `unreserved` or `lost`; `None` on a slot whose WAL was never reserved.
    pub wal_status: Option<String>,
    /// Bytes that may still be written before the slot is in danger; `None` without a limit, or once it is lost.
    pub safe_wal_size: Option<i64>,
    /// PostgreSQL 17+.
    pub invalidation_reason: Option<String>,
    /// Standbys keep the slot in step. PostgreSQL 17+.
    pub failover: Option<bool>,
    /// It was kept in step with another server's, here or before a promotion. PostgreSQL 17+.
    pub synced: Option<bool>,
}

/// The process that reads the slot. Without `pg_read_all_stats` only the pid and the application of
/// a process of another role are visible.
#[derive(Clone, Debug, Deserialize)]
pub struct Holder {
    pub pid: i32,
    pub client: Option<String>,
    pub application: Option<String>,
    pub since: Option<Timestamp>,
    /// `async`, `potential`, `sync` or `quorum`.
    pub sync_state: Option<String>,
}

/// What there is of a configured table.
#[derive(Clone, Debug, Deserialize)]
pub struct Found {
    /// `None`: no table of that name in the database.
    pub table: Option<Table>,
    /// `None` without a publication.
    pub published: Option<Published>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Table {
    pub oid: u32,
    /// `pg_class.relkind`: `r` a table, `p` a partitioned one.
    pub kind: char,
    /// Is itself a partition of another table.
    pub partition: bool,
    pub columns: Vec<Column>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Column {
    pub name: String,
    /// `pg_attribute.attgenerated`: empty, `s` stored, `v` virtual (PostgreSQL 18+).
    pub generated: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Publication {
    pub insert: bool,
    pub update: bool,
    pub delete: bool,
    pub truncate: bool,
    /// `FOR ALL TABLES`.
    pub all_tables: bool,
    /// `publish_via_partition_root`.
    pub via_root: bool,
    /// Publishes stored generated columns (`publish_generated_columns`, PostgreSQL 18+).
    pub generated: bool,
}

/// The publication's hold on one table.
#[derive(Clone, Debug, Deserialize)]
pub struct Published {
    /// Has the table in it, by name, by schema or with all.
    pub names_table: bool,
    /// Has a table in it that ours is a partition of.
    pub names_root: bool,
    /// The row filter's expression.
    pub filter: Option<String>,
    /// The column list's names.
    pub columns: Option<Vec<String>>,
    /// Changes when anybody touches the publication's hold on the table, even if it is put back.
    pub fingerprint: Value,
}

/// Our row in `walpost.slot`; a column that another version of the schema lacks is `None`.
#[derive(Clone, Debug, Deserialize)]
pub struct Record {
    /// `creating`, `backfilling` or `ready`.
    #[serde(default)]
    pub state: String,
    pub system_identifier: Option<String>,
    pub database: Option<String>,
    pub plugin: Option<String>,
    pub consistent_point: Option<Lsn>,
    /// The fingerprint when `init` looked.
    pub publication: Option<Value>,
    pub life: Option<i32>,
    pub epoch: Option<i64>,
    pub confirmed_lsn: Option<Lsn>,
    pub reserved_lsn: Option<Lsn>,
    /// Of the server when a publisher last took the slot over.
    pub timeline: Option<u32>,
}

impl Record {
    /// Behind this position the stream showed that the publication was missing.
    pub fn missed_after(&self) -> Option<&str> {
        self.publication.as_ref()?.get(MISSED_AFTER)?.as_str()
    }
}

impl SlotFacts {
    /// Of the publication's hold on all the tables: changes when anybody touches it. `None` without
    /// a publication.
    pub fn fingerprint(&self) -> Option<Value> {
        let published = |found: &Found| Some(found.published.as_ref()?.fingerprint.clone());
        let mut prints = self
            .tables
            .iter()
            .map(published)
            .collect::<Option<Vec<_>>>()?;
        if prints.len() == 1 {
            return prints.pop();
        }
        // The order of the configuration is of no matter.
        prints.sort_by_key(|print| print["table"].as_u64());
        Some(Value::Array(prints))
    }

    /// WAL written since the confirmed position, in bytes.
    pub fn confirmed_lag_bytes(&self) -> Option<u64> {
        self.behind(self.slot.as_ref()?.confirmed_flush_lsn?)
    }

    /// WAL that the server keeps for the slot, in bytes.
    pub fn retained_bytes(&self) -> Option<u64> {
        self.behind(self.slot.as_ref()?.restart_lsn?)
    }

    /// A promoted standby that kept the slot in step, and on which nobody took it over yet.
    pub fn is_promoted(&self) -> bool {
        let was = self.record.as_ref().and_then(|record| record.timeline);
        let is_synced = self.slot.as_ref().and_then(|slot| slot.synced) == Some(true);
        is_synced && was.is_some_and(|was| was != self.server.timeline)
    }

    fn behind(&self, lsn: Lsn) -> Option<u64> {
        Some(self.server.wal_lsn?.bytes().saturating_sub(lsn.bytes()))
    }
}

/// Reads the facts: two round trips, the second one a single statement; a third one after a
/// promotion.
pub async fn facts(client: &Client, names: &Names) -> Result<SlotFacts, tokio_postgres::Error> {
    let text = query(&shape(client).await?);
    let (schemas, tables): (Vec<_>, Vec<_>) = names
        .tables
        .iter()
        .map(|outbox| (outbox.table.schema.as_str(), outbox.table.name.as_str()))
        .unzip();
    let row = client
        .query_typed(
            &text,
            &[
                (&names.slot, Type::TEXT),
                (&names.publication, Type::TEXT),
                (&schemas, Type::TEXT_ARRAY),
                (&tables, Type::TEXT_ARRAY),
            ],
        )
        .await?;
    let FromJson(mut facts) = row[0].try_get::<_, FromJson<SlotFacts>>(0)?;
    if facts.is_promoted() {
        let text = "SELECT pg_catalog.max(lsn)::text FROM walpost.mark";
        let rows = client.query_typed(text, &[]).await?;
        let newest: Option<String> = rows[0].try_get(0)?;
        facts.newest_mark = newest.and_then(|text| text.parse().ok());
    }
    Ok(facts)
}

/// What the query may name on this server and in this database.
struct Shape {
    version_num: i32,
    has_meta: bool,
    has_record: bool,
    has_timeline: bool,
}

async fn shape(client: &Client) -> Result<Shape, tokio_postgres::Error> {
    // By the catalogue and not by to_regclass, which is an error without USAGE on the schema.
    let rows = client
        .query_typed(
            "SELECT pg_catalog.current_setting('server_version_num')::int,
               (SELECT pg_catalog.array_agg(c.relname::text) FROM pg_catalog.pg_class c
                JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                WHERE n.nspname = 'walpost' AND c.relname IN ('meta', 'slot', 'timeline') AND c.relkind = 'r')",
            &[],
        )
        .await?;
    let tables: Vec<String> = rows[0].try_get::<_, Option<_>>(1)?.unwrap_or_default();
    let has = |name: &str| tables.iter().any(|t| t == name);
    Ok(Shape {
        version_num: rows[0].try_get(0)?,
        has_meta: has("meta"),
        has_record: has("slot"),
        has_timeline: has("timeline"),
    })
}

fn query(shape: &Shape) -> String {
    let (filter, columns, schemas) = if shape.version_num >= 150_000 {
        (
            "pg_catalog.pg_get_expr(r.prqual, r.prrelid)",
            "(SELECT pg_catalog.jsonb_agg(a.attname ORDER BY a.attnum) FROM pg_catalog.pg_attribute a
              WHERE a.attrelid = r.prrelid AND a.attnum = ANY (r.prattrs::int2[]))",
            "SELECT DISTINCT line.number, n.oid, n.xmin::text AS version, n.pnnspid AS schema
             FROM pub JOIN pg_catalog.pg_publication_namespace n ON n.pnpubid = pub.oid
               JOIN line ON line.relnamespace = n.pnnspid",
        )
    } else {
        (
            "NULL::text",
            "NULL::jsonb",
            "SELECT NULL::bigint AS number, NULL::oid AS oid, NULL::text AS version, NULL::oid AS schema WHERE false",
        )
    };
    // Older servers do not notice that a table became a partition: those that were not made as one
    // are listed. Attaching writes every column anew, so none is of the command that made the
    // table, as its system columns are.
    let attached = match shape.version_num {
        150_000.. => "",
        _ => {
            ", 'attached', (SELECT pg_catalog.json_object_agg(a.attrelid, a.attrelid::pg_catalog.regclass::text)
               FROM tab, pg_catalog.pg_partition_tree(tab.oid) t
                 JOIN pg_catalog.pg_attribute a ON a.attrelid = t.relid AND a.attnum = -1
               WHERE tab.number = w.number AND tab.relkind = 'p' AND t.parentrelid IS NOT NULL AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute c
                 WHERE c.attrelid = a.attrelid AND c.attnum > 0 AND c.xmin = a.xmin AND c.cmin = a.cmin))"
        }
    };
    let generated = match shape.version_num {
        180_000.. => "pubgencols = 's'",
        _ => "false",
    };
    let version = if shape.has_meta {
        "(SELECT pg_catalog.max(version) FROM walpost.meta)"
    } else {
        "NULL"
    };
    let record = match (shape.has_record, shape.has_timeline) {
        (true, true) => {
            "(SELECT pg_catalog.to_jsonb(s) || pg_catalog.jsonb_build_object('timeline', t.timeline)
              FROM walpost.slot s LEFT JOIN walpost.timeline t USING (slot) WHERE s.slot = $1)"
        }
        (true, false) => "(SELECT pg_catalog.to_json(s) FROM walpost.slot s WHERE s.slot = $1)",
        (false, _) => "NULL",
    };
    include_str!("../../sql/facts.sql")
        .replace("{filter}", filter)
        .replace("{columns}", columns)
        .replace("{schemas}", schemas)
        .replace("{generated}", generated)
        .replace("{attached}", attached)
        .replace("{version}", version)
        .replace("{record}", record)
}

/// A value read from one column of type json.
pub(super) struct FromJson<T>(pub T);

impl<'a, T: serde::de::DeserializeOwned> FromSql<'a> for FromJson<T> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        // An SQL_ASCII database sends its names' bytes as they are.
        Ok(FromJson(serde_json::from_str(&String::from_utf8_lossy(
            raw,
        ))?))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::JSON
    }
}

#[cfg(test)]
pub mod tests;
