//! What the table's own numbers tell of rows that are gone: those of `order_by` that no row has.

use anyhow::Context as _;
use tokio_postgres::types::Type;

use crate::pg::{
    mark::Mark,
    quote::{ident, table},
    setup::explain,
    table::Reader,
};

/// So many of the ranges are named.
const NAMED: usize = 20;

/// Numbers without a row among those that were taken since a mark. A deleted row leaves one, and so
/// does a transaction that was rolled back: nothing tells the two apart.
#[derive(Clone, Debug)]
pub struct Numbers {
    pub column: String,
    /// The lowest and the highest number that were looked at.
    pub from: i64,
    pub to: i64,
    /// How many in between have no row.
    pub missing: u64,
    /// Which ones, first and last of each range; the first ranges alone.
    pub ranges: Vec<(i64, i64)>,
    /// No row from before the mark is left, so what lies below `from` is not known.
    pub is_open_below: bool,
    /// The sequence could not be read, so what lies above `to` is not known.
    pub is_open_above: bool,
}

impl Reader {
    /// The highest number that was handed out, of a sequence that may be read and counts by one.
    pub async fn last_number(&self) -> anyhow::Result<Option<i64>> {
        let text = "SELECT s.last_value FROM pg_catalog.pg_sequences s
              JOIN pg_catalog.pg_namespace n ON n.nspname = s.schemaname
              JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = s.sequencename
            WHERE c.oid = pg_catalog.to_regclass(pg_catalog.pg_get_serial_sequence($1, $2)) AND s.increment_by = 1";
        let name = table(&self.name);
        let values = [(&name as _, Type::TEXT), (&self.order_by as _, Type::TEXT)];
        let rows = self.client.query_typed(text, &values).await;
        let rows = rows.map_err(explain)?;
        Ok(rows
            .first()
            .map(|row| row.try_get(0))
            .transpose()?
            .flatten())
    }

    /// In the transaction of [`Reader::begin`]; `last`: taken before it. The error says why nothing
    /// can be counted.
    pub async fn numbers(
        &self,
        since: Option<&Mark>,
        last: Option<i64>,
    ) -> anyhow::Result<Result<Numbers, String>> {
        let column = &self.order_by;
        if let Some(other) = self.other_type().await? {
            return Ok(Err(format!("column {column} is of type {other}")));
        }
        let n = ident(column);
        let recent = since.map_or("true".into(), Mark::is_recent);
        let from = format!(
            "(SELECT {n}::int8 AS n, {recent} AS recent FROM {}) AS r",
            table(&self.name)
        );
        let text = format!(
            "SELECT max(n) FILTER (WHERE NOT recent), min(n) FILTER (WHERE recent), max(n) FROM {from}"
        );
        let rows = self.client.query_typed(&text, &[]).await.map_err(explain)?;
        let row = rows.first().context("no answer")?;
        let (before, lowest): (Option<i64>, Option<i64>) = (row.try_get(0)?, row.try_get(1)?);
        let highest: Option<i64> = row.try_get(2)?;
        let (Some(low), Some(high)) = (
            [before, lowest].into_iter().flatten().min(),
            highest.max(last),
        ) else {
            return Ok(Err("the table is empty".into()));
        };
        let text = format!(
            "SELECT n + 1, next - 1, (sum(next - 1 - n) OVER ())::int8
             FROM (SELECT n, lead(n, 1, $2 + 1) OVER (ORDER BY n) AS next FROM {from} WHERE n BETWEEN $1 AND $2) AS g
             WHERE next - n > 1 ORDER BY n LIMIT {NAMED}"
        );
        let values = [(&low as _, Type::INT8), (&high as _, Type::INT8)];
        let rows = self.client.query_typed(&text, &values).await;
        let rows = rows.map_err(explain)?;
        let mut ranges = Vec::new();
        for row in &rows {
            ranges.push((row.try_get(0)?, row.try_get(1)?));
        }
        let missing = rows
            .first()
            .map(|row| row.try_get::<_, i64>(2))
            .transpose()?;
        Ok(Ok(Numbers {
            column: column.clone(),
            from: low,
            to: high,
            missing: missing.unwrap_or(0).try_into()?,
            ranges,
            is_open_below: before.is_none(),
            is_open_above: last.is_none(),
        }))
    }

    /// Numbers without a row between these bounds, or where one is missing, between the lowest and the
    /// highest of the rows that were asked for. In the transaction of [`Reader::begin`]; `last`: taken
    /// before it. The error says why nothing can be counted.
    pub async fn gone(
        &self,
        from: Option<i64>,
        to: Option<i64>,
        last: Option<i64>,
    ) -> anyhow::Result<Result<Numbers, String>> {
        let column = &self.order_by;
        if let Some(other) = self.other_type().await? {
            return Ok(Err(format!("column {column} is of type {other}")));
        }
        let (n, outbox) = (ident(column), table(&self.name));
        let text = format!(
            "SELECT min({n})::int8, max({n})::int8, (SELECT max({n})::int8 FROM {outbox}) FROM {outbox} WHERE {}",
            self.within()
        );
        let rows = self.client.query_typed(&text, &[]).await.map_err(explain)?;
        let row = rows.first().context("no answer")?;
        let (lowest, highest): (Option<i64>, Option<i64>) = (row.try_get(0)?, row.try_get(1)?);
        // What nobody wrote yet is not gone.
        let newest = row.try_get::<_, Option<i64>>(2)?.max(last);
        let high = to.map_or(highest, |to| newest.map(|newest| to.min(newest)));
        let (Some(low), Some(high)) = (from.or(lowest), high) else {
            return Ok(Err("there are no such rows".into()));
        };
        let text = format!(
            "SELECT before + 1, n - 1, (sum(n - before - 1) OVER ())::int8
             FROM (SELECT n, lag(n, 1, $1 - 1) OVER (ORDER BY n) AS before
               FROM (SELECT {n}::int8 AS n FROM {outbox} WHERE {n} BETWEEN $1 AND $2 UNION ALL SELECT $2 + 1) AS r) AS g
             WHERE n - before > 1 ORDER BY n LIMIT {NAMED}"
        );
        let values = [(&low as _, Type::INT8), (&high as _, Type::INT8)];
        let rows = match low <= high {
            true => self
                .client
                .query_typed(&text, &values)
                .await
                .map_err(explain)?,
            false => Vec::new(),
        };
        let mut ranges = Vec::new();
        for row in &rows {
            ranges.push((row.try_get(0)?, row.try_get(1)?));
        }
        let missing = rows
            .first()
            .map(|row| row.try_get::<_, i64>(2))
            .transpose()?;
        Ok(Ok(Numbers {
            column: column.clone(),
            from: low,
            to: high,
            missing: missing.unwrap_or(0).try_into()?,
            ranges,
            is_open_below: false,
            is_open_above: false,
        }))
    }

    /// The type of `order_by`, if it is none of the integers.
    pub async fn other_type(&self) -> anyhow::Result<Option<String>> {
        let text = "SELECT pg_catalog.format_type(atttypid, NULL) FROM pg_catalog.pg_attribute
            WHERE attrelid = $1::pg_catalog.regclass AND attname = $2
              AND atttypid NOT IN ('int2'::pg_catalog.regtype, 'int4'::pg_catalog.regtype, 'int8'::pg_catalog.regtype)";
        let name = table(&self.name);
        let values = [(&name as _, Type::TEXT), (&self.order_by as _, Type::TEXT)];
        let rows = self.client.query_typed(text, &values).await;
        let rows = rows.map_err(explain)?;
        Ok(rows.first().map(|row| row.try_get(0)).transpose()?)
    }
}
