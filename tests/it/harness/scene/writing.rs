//! The application: rows in the outbox, and WAL that is none of ours.

use super::Scene;
use crate::harness::{
    sql::{Sql, quote},
    uuid,
};

impl Scene {
    /// So many rows of a key, a transaction each; their ids.
    pub fn insert(&self, key: &str, count: u64) -> Vec<String> {
        (0..count)
            .map(|_| self.insert_row(&[("aggregate_id", &quote(Some(key)))]))
            .collect()
    }

    /// One row; columns as SQL. What isn't given is of type `order` and key `k`, with the key's next `seq` as payload.
    pub fn insert_row(&self, columns: &[(&str, &str)]) -> String {
        self.sql.value(&self.row(columns)).expect("an event id")
    }

    /// A column `bad` of a type whose output function fails for every value: the server cannot
    /// encode a row that has one.
    pub fn undecodable_type(&self) {
        self.sql.run(
            "CREATE TYPE bad;
             CREATE FUNCTION bad_in(cstring) RETURNS bad LANGUAGE internal IMMUTABLE STRICT AS 'int4in';
             CREATE FUNCTION bad_out(bad) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'enum_out';
             CREATE TYPE bad (INPUT = bad_in, OUTPUT = bad_out, INTERNALLENGTH = 4, PASSEDBYVALUE, ALIGNMENT = int4);
             ALTER TABLE public.outbox ADD COLUMN bad bad",
        );
    }

    /// The statement of `insert_row`.
    pub fn row(&self, columns: &[(&str, &str)]) -> String {
        let given = |name: &str| {
            columns
                .iter()
                .find(|(column, _)| *column == name)
                .map(|(_, value)| (*value).to_owned())
        };
        let key = given("aggregate_id").unwrap_or_else(|| "'k'".into());
        let payload = given("payload")
            .unwrap_or_else(|| format!("'{{\"seq\": {}}}'", self.next_seqs(&key, 1)));
        let mut row = vec![
            ("aggregate_type", "'order'".to_owned()),
            ("event_type", "'T'".to_owned()),
            ("aggregate_id", key),
            ("payload", payload),
        ];
        for (name, value) in columns {
            match row.iter_mut().find(|(known, _)| known == name) {
                Some(entry) => entry.1 = (*value).to_owned(),
                None => row.push((name, (*value).to_owned())),
            }
        }
        let names = row
            .iter()
            .map(|(name, _)| *name)
            .collect::<Vec<_>>()
            .join(", ");
        let values = row
            .into_iter()
            .map(|(_, value)| value)
            .collect::<Vec<_>>()
            .join(", ");
        format!("INSERT INTO public.outbox ({names}) VALUES ({values}) RETURNING event_id::text")
    }

    /// The statement that inserts so many rows of a key at once, `pad` bytes each.
    pub fn rows(&self, key: &str, count: u64, pad: usize) -> String {
        let key = quote(Some(key));
        let first = self.next_seqs(&key, count);
        format!(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
             SELECT 'order', {key}, 'T', jsonb_build_object('seq', i, 'pad', repeat('x', {pad}))
             FROM generate_series({first}, {}) i ORDER BY i RETURNING event_id::text",
            first + count - 1
        )
    }

    /// Takes so many numbers of the key (an SQL literal); the first of them.
    fn next_seqs(&self, key: &str, count: u64) -> u64 {
        let mut seqs = self.seqs.lock().expect("no panic under this lock");
        let seq = seqs.entry(key.to_owned()).or_default();
        *seq += count;
        *seq + 1 - count
    }

    /// About so many megabytes of WAL that are none of ours.
    pub fn noise(&self, sql: &Sql, megabytes: u64) {
        let rows = megabytes * 1000;
        let name = format!("noise_{}", &uuid()[..8]);
        sql.run(&format!("CREATE TABLE {name} AS SELECT repeat(md5(i::text), 31) AS text FROM generate_series(1, {rows}) i"));
    }
}
