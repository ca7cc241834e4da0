//! The outbox table's own rows, in `order_by` order and of one snapshot, each as the tuple that the
//! stream would have brought.

use std::{pin::Pin, sync::Arc, time::Duration};

use anyhow::Context as _;
use bytes::{Buf, Bytes, BytesMut};
use futures_util::StreamExt as _;
use jiff::Timestamp;
use tokio_postgres::{Client, CopyOutStream, error::SqlState, types::Type};

use crate::{
    config::{Outbox, TableName},
    error::{Exit, Stop},
    outbox::{
        mapping::Mapping,
        relation::{Shape, Types},
        types::FIRST_OF_USERS,
    },
    pg::{
        conninfo::ConnInfo,
        mark::Mark,
        pgoutput::{Column, Relation},
        quote::{ident, literal, table},
        setup::explain,
        sql,
    },
    stop,
};

/// The users' types, each with the type that it is a domain over, domains over domains included; all
/// others with themselves.
pub fn types() -> String {
    format!(
        "WITH RECURSIVE base (oid, under) AS (
           SELECT t.oid, t.oid FROM pg_catalog.pg_type t WHERE t.oid >= {FIRST_OF_USERS}
           UNION ALL SELECT b.oid, t.typbasetype FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.under WHERE t.typtype = 'd')
         SELECT b.oid, b.under FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.under WHERE t.typtype <> 'd'"
    )
}

pub async fn known_types(client: &Client) -> anyhow::Result<Types> {
    let mut users: Vec<(u32, u32)> = Vec::new();
    for row in client.query_typed(&types(), &[]).await.map_err(explain)? {
        users.push((row.try_get(0)?, row.try_get(1)?));
    }
    Ok(Types::new(users.into_iter()))
}

/// A connection that reads the table, and nothing else.
pub struct Reader {
    pub(super) client: Client,
    pub(super) name: TableName,
    columns: Vec<Column>,
    /// As people read them.
    pub types: Vec<String>,
    pub(super) order_by: String,
    pub order: Order,
    /// A condition that rows have to meet, as SQL.
    within: Option<String>,
    pub shape: Arc<Shape>,
}

/// Types of columns that tell times.
const TIMESTAMPTZ: u32 = 1184;
const TIMESTAMP: u32 = 1114;
const DATE: u32 = 1082;

/// The column that orders the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The table has none of that name, or none is configured.
    None,
    There,
    /// An index begins with it: a few of the newest rows are found quickly.
    Indexed,
}

impl Reader {
    /// Refuses what cannot be read: a missing right, or a column that is missing.
    pub async fn open(
        info: &ConnInfo,
        outbox: &Outbox,
        mapping: &Arc<Mapping>,
        application: &str,
    ) -> anyhow::Result<Reader> {
        let reader = Reader::look(info, outbox, mapping, application).await?;
        if reader.order == Order::None {
            return Err(no_order(outbox).into());
        }
        reader.may_read(&info.user).await?;
        Ok(reader)
    }

    /// Reads only what the catalogue says.
    pub async fn look(
        info: &ConnInfo,
        outbox: &Outbox,
        mapping: &Arc<Mapping>,
        application: &str,
    ) -> anyhow::Result<Reader> {
        let client = sql::connect(info, application).await?;
        // A long pause is Kafka's: the transaction and its snapshot have to outlive it. A policy
        // would hide rows silently; an error is better. Of an SQL_ASCII database the bytes are
        // taken as they are, as in the stream.
        let settings =
            "SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', '0', false),
            pg_catalog.set_config('row_security', 'off', false),
            CASE WHEN pg_catalog.current_setting('server_encoding') = 'SQL_ASCII'
              THEN pg_catalog.set_config('client_encoding', 'SQL_ASCII', false) END";
        client.query_typed(settings, &[]).await.map_err(explain)?;
        let wanted: Vec<&str> = mapping.all_columns().collect();
        let text = "SELECT a.attname::text, a.atttypid::bigint, a.attname = ANY ($3), pg_catalog.format_type(a.atttypid, a.atttypmod),
              EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indkey[0] = a.attnum AND i.indisvalid AND i.indpred IS NULL)
            FROM pg_catalog.pg_attribute a
              JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = $1 AND c.relname = $2 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";
        let TableName { schema, name } = &outbox.table;
        let rows = client
            .query_typed(
                text,
                &[
                    (schema, Type::TEXT),
                    (name, Type::TEXT),
                    (&wanted, Type::TEXT_ARRAY),
                ],
            )
            .await
            .map_err(explain)?;
        let (mut columns, mut types, mut order) = (Vec::new(), Vec::new(), Order::None);
        for row in rows {
            let name: String = row.try_get(0)?;
            if name == outbox.order_by {
                order = match row.try_get(4)? {
                    true => Order::Indexed,
                    false => Order::There,
                };
            }
            if row.try_get(2)? {
                let type_oid = u32::try_from(row.try_get::<_, i64>(1)?)?;
                columns.push(Column { name, type_oid });
                types.push(row.try_get(3)?);
            }
        }
        let known = known_types(&client).await?;
        let relation = Relation {
            id: 0,
            namespace: schema.clone(),
            name: name.clone(),
            columns,
        };
        let shape = Arc::new(Shape::new(&relation, mapping, &known));
        Ok(Reader {
            client,
            name: outbox.table.clone(),
            columns: relation.columns,
            types,
            order_by: outbox.order_by.clone(),
            order,
            within: None,
            shape,
        })
    }

    /// Rights are looked at even for no rows.
    pub async fn may_read(&self, role: &str) -> anyhow::Result<()> {
        let select = format!("{} LIMIT 0", self.select(None));
        let Err(error) = self.client.batch_execute(&select).await else {
            return Ok(());
        };
        let (outbox, schema) = (table(&self.name), ident(&self.name.schema));
        let role = ident(role);
        Err(match error.code() {
            Some(&SqlState::INSUFFICIENT_PRIVILEGE) => stop!(
                Exit::Error,
                "cannot read the rows of {outbox}: {:#}; let its owner run `GRANT USAGE ON SCHEMA {schema} TO {role}; \
                 GRANT SELECT ON {outbox} TO {role}`",
                explain(error)
            )
            .into(),
            _ => explain(error).context(format!("cannot read the rows of {outbox}")),
        })
    }

    /// Only rows with these numbers of `order_by`, both included.
    pub fn only_numbers(&mut self, from: Option<i64>, to: Option<i64>) {
        let n = ident(&self.order_by);
        let from = from.map(|from| format!("{n} >= {from}"));
        let to = to.map(|to| format!("{n} <= {to}"));
        self.restrict(from, to);
    }

    /// Only rows whose column, a mapped one, is at or after `from` and before `to`. The error says why
    /// it tells no time.
    pub fn only_times(
        &mut self,
        column: &str,
        from: Option<Timestamp>,
        to: Option<Timestamp>,
    ) -> Result<(), String> {
        let found = self.columns.iter().find(|found| found.name == column);
        let name = ident(column);
        // Without a time zone it is read as UTC, as in records.
        let time = match found.map(|found| found.type_oid) {
            Some(TIMESTAMPTZ) => name,
            Some(TIMESTAMP) => format!("({name} AT TIME ZONE 'UTC')"),
            Some(DATE) => format!("({name}::timestamp AT TIME ZONE 'UTC')"),
            _ => return Err(format!("column {name} is of no type for times")),
        };
        let moment = |at: Timestamp| format!("{}::timestamptz", literal(&at.to_string()));
        let from = from.map(|from| format!("{time} >= {}", moment(from)));
        let to = to.map(|to| format!("{time} < {}", moment(to)));
        self.restrict(from, to);
        Ok(())
    }

    fn restrict(&mut self, from: Option<String>, to: Option<String>) {
        let both: Vec<_> = [from, to].into_iter().flatten().collect();
        self.within = Some(both.join(" AND ")).filter(|condition| !condition.is_empty());
    }

    /// Every row that follows is of this snapshot: an exported one, or one of this moment.
    pub async fn begin(&self, exported: Option<&str>) -> anyhow::Result<()> {
        let import = exported.map_or_else(String::new, |name| {
            format!("SET TRANSACTION SNAPSHOT {};", literal(name))
        });
        // The snapshot of this moment is taken by the first query.
        let text = format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; {import} SELECT pg_catalog.pg_current_snapshot()"
        );
        self.client
            .batch_execute(&text)
            .await
            .map_err(explain)
            .context("cannot read the table as of the slot's beginning")
    }

    fn select(&self, since: Option<&Mark>) -> String {
        let columns: Vec<_> = self.columns.iter().map(|c| ident(&c.name)).collect();
        let since = since.map(Mark::is_recent);
        let conditions: Vec<_> = since.into_iter().chain(self.within.clone()).collect();
        let conditions = match conditions.as_slice() {
            [] => String::new(),
            all => format!(" WHERE {}", all.join(" AND ")),
        };
        format!(
            "SELECT {} FROM {}{conditions}",
            columns.join(", "),
            table(&self.name)
        )
    }

    /// How many rows [`Reader::rows`] would give.
    pub async fn count(&self, since: Option<&Mark>) -> anyhow::Result<u64> {
        let text = format!(
            "SELECT pg_catalog.count(*) FROM ({}) AS r",
            self.select(since)
        );
        let rows = self.client.query_typed(&text, &[]).await.map_err(explain)?;
        Ok(rows[0].try_get::<_, i64>(0)?.try_into()?)
    }

    /// The condition of [`Reader::only_numbers`] or [`Reader::only_times`].
    pub(super) fn within(&self) -> &str {
        self.within.as_deref().unwrap_or("true")
    }

    /// The rows of the snapshot; `since`: without those that were committed below the mark. Read
    /// as they are taken, so a pause costs no memory.
    pub async fn rows(&self, since: Option<&Mark>) -> anyhow::Result<Rows> {
        // COPY writes each type as the stream does, by its own output function.
        let order = ident(&self.order_by);
        self.copy(&format!("{} ORDER BY {order}", self.select(since)))
            .await
    }

    /// Some rows of this moment, at most `limit`: the newest ones where an index finds them. Gives up
    /// after `within`.
    pub async fn some_rows(&self, limit: u32, within: Duration) -> anyhow::Result<Rows> {
        let timeout = format!("SET statement_timeout = {}", within.as_millis());
        self.client.batch_execute(&timeout).await.map_err(explain)?;
        let order = match self.order {
            Order::Indexed => format!(" ORDER BY {} DESC", ident(&self.order_by)),
            Order::None | Order::There => String::new(),
        };
        self.copy(&format!("{}{order} LIMIT {limit}", self.select(None)))
            .await
    }

    async fn copy(&self, select: &str) -> anyhow::Result<Rows> {
        let text = format!("COPY ({select}) TO STDOUT");
        let stream = self.client.copy_out(&text).await.map_err(explain)?;
        Ok(Rows {
            stream: Box::pin(stream),
            read: BytesMut::new(),
        })
    }
}

fn no_order(outbox: &Outbox) -> Stop {
    if outbox.order_by.is_empty() {
        return stop!(
            Exit::Usage,
            "the rows of table {} are read in the order of a column, and none is set: set `outbox.order_by`",
            table(&outbox.table)
        );
    }
    stop!(
        Exit::Usage,
        "table {} has no column {}, which orders its rows: set `outbox.order_by`",
        table(&outbox.table),
        outbox.order_by
    )
}

/// Rows of the table, as they arrive.
pub struct Rows {
    stream: Pin<Box<CopyOutStream>>,
    read: BytesMut,
}

impl Rows {
    /// The next row's tuple; `None` behind the last one. Cancel-safe.
    pub async fn next(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        loop {
            // A line's end within a value is written as \n.
            if let Some(end) = self.read.iter().position(|b| *b == b'\n') {
                let line = self.read.split_to(end);
                self.read.advance(1);
                return tuple(&line).map(Some);
            }
            match self.chunk().await {
                Some(chunk) => self.read.extend_from_slice(&chunk.map_err(explain)?),
                None => return Ok(None),
            }
        }
    }

    async fn chunk(&mut self) -> Option<Result<Bytes, tokio_postgres::Error>> {
        self.stream.next().await
    }
}

/// A line of COPY's text format as the tuple of an Insert.
/// <https://www.postgresql.org/docs/current/sql-copy.html>
fn tuple(line: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut tuple = vec![0, 0];
    let mut count = 0u16;
    for value in line.split(|b| *b == b'\t') {
        count += 1;
        if value == b"\\N" {
            tuple.push(b'n');
            continue;
        }
        tuple.push(b't');
        let at = tuple.len();
        tuple.extend([0; 4]);
        let mut bytes = value.iter();
        while let Some(byte) = bytes.next() {
            tuple.push(match byte {
                b'\\' => match bytes.next().context("a line of COPY ends in a backslash")? {
                    b'b' => 8,
                    b't' => b'\t',
                    b'n' => b'\n',
                    b'v' => 11,
                    b'f' => 12,
                    b'r' => b'\r',
                    other => *other,
                },
                byte => *byte,
            });
        }
        let length = u32::try_from(tuple.len() - at - 4)?;
        tuple[at..at + 4].copy_from_slice(&length.to_be_bytes());
    }
    tuple[..2].copy_from_slice(&count.to_be_bytes());
    Ok(tuple)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pg::pgoutput::{Tuple, Value};

    #[test]
    fn a_line_of_copy_becomes_a_tuple() {
        let bytes = tuple(b"a\t\\N\t\t\\\\x00\\t\\n\\r\\b\\f\\v\\\\N").unwrap();
        let values: Vec<_> = Tuple::from_bytes(&bytes).values().collect();
        let last = b"\\x00\t\n\r\x08\x0c\x0b\\N";
        let expected = [
            Value::Text(b"a"),
            Value::Null,
            Value::Text(b""),
            Value::Text(last),
        ];
        assert_eq!(values, expected);
        assert!(tuple(b"a\\").is_err());
    }
}
