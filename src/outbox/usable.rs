//! Whether the types of the mapped columns suit what becomes of them. A row tells only about itself;
//! this is known before the first one.

use super::{
    mapping::{Mapping, Role},
    relation::{Field, Shape, Slot},
    types::Form,
};
use crate::config::outbox::Placement;

/// A column whose type does not suit its use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// Its place in the shape.
    pub index: usize,
    /// No row can be mapped; otherwise some may be.
    pub never: bool,
    /// What is wrong, behind the column's name and type.
    pub text: String,
    pub fix: &'static str,
}

/// The misfits of a table that has every column it must have.
pub fn misfits(shape: &Shape) -> Vec<Misfit> {
    let mapping = &shape.mapping;
    let mut found = Vec::new();
    let mut note = |field: Option<Field>, judge: &dyn Fn(Form) -> Option<Verdict>| {
        let judged = field.and_then(|field| Some((field.index, judge(field.form)?)));
        found.extend(judged.map(|(index, (never, text, fix))| Misfit {
            index,
            never,
            text,
            fix,
        }));
    };
    note(shape.role(Role::Headers), &headers);
    note(shape.role(Role::OccurredAt), &|form| {
        time(form, "role occurred_at")
    });
    note(shape.timestamp, &|form| time(form, "timestamp_column"));
    note(shape.tracing, &tracing);
    note(shape.role(Role::Payload), &|form| payload(form, mapping));
    for slot in &shape.topic {
        if let Slot::Column { field, .. } = slot {
            note(Some(*field), &topic);
        }
    }
    for (one, field) in mapping.additional.iter().zip(&shape.additional) {
        if one.placement == Placement::Partition {
            note(*field, &partition);
        }
    }
    found
}

/// Never, what is wrong, and what mends it.
type Verdict = (bool, String, &'static str);

fn headers(form: Form) -> Option<Verdict> {
    const FIX: &str = "make it jsonb, or switch the role off with `headers = false`";
    match form {
        Form::Json => None,
        Form::Text => Some((
            false,
            "has role headers, and a row whose text is no JSON object cannot be published".into(),
            FIX,
        )),
        _ => Some((
            true,
            "has role headers, and holds no JSON object".into(),
            FIX,
        )),
    }
}

fn time(form: Form, is: &str) -> Option<Verdict> {
    const FIX: &str = "make it timestamptz, or bigint with milliseconds since 1970; without the role the commit's time is taken";
    match form {
        Form::Time | Form::Integer => None,
        Form::Text => Some((
            false,
            format!("is the column of {is}, and a row whose text is no time cannot be published"),
            FIX,
        )),
        _ => Some((
            true,
            format!("is the column of {is}, and holds no time"),
            FIX,
        )),
    }
}

fn tracing(form: Form) -> Option<Verdict> {
    (form != Form::Text).then(|| {
        (
            false,
            "is the tracing_column, and holds no text of java.util.Properties".into(),
            "make it text, or leave tracing_column out",
        )
    })
}

fn payload(form: Form, mapping: &Mapping) -> Option<Verdict> {
    let prunes = mapping.drop_nulls || mapping.drop_empty_arrays;
    if prunes && form != Form::Json && !(form == Form::Text && mapping.expand_json) {
        return Some((
            false,
            "has role payload and is no JSON, so json_nulls and json_empty_arrays change nothing"
                .into(),
            "make it jsonb, or set `expand_json = true` for a text column",
        ));
    }
    (mapping.expand_json && form != Form::Text).then(|| {
        (
            false,
            "has role payload and is no text, so expand_json changes nothing".into(),
            "leave expand_json out",
        )
    })
}

fn topic(form: Form) -> Option<Verdict> {
    const FIX: &str = "name a text column";
    let names = "is part of the topic's name, and";
    match form {
        Form::Bytea => Some((true, format!("{names} bytes make no valid one"), FIX)),
        Form::Json => Some((false, format!("{names} JSON rarely makes a valid one"), FIX)),
        _ => None,
    }
}

fn partition(form: Form) -> Option<Verdict> {
    const FIX: &str = "make it integer";
    let gives = "is to give the partition, and";
    match form {
        Form::Integer => None,
        Form::Text | Form::Number | Form::Gone => Some((
            false,
            format!("{gives} a row whose text is no whole number cannot be published"),
            FIX,
        )),
        _ => Some((true, format!("{gives} holds no number"), FIX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        outbox::{
            relation::Types,
            tests::mapping,
            types::{BOOL, BYTEA, INT4, JSONB, TEXT, TIMESTAMPTZ},
        },
        pg::pgoutput::{Column, Relation},
    };

    /// The misfits of the one column `c`, as never or not.
    fn judge(written: &str, type_oid: u32) -> Vec<bool> {
        let off = [
            "event_id",
            "aggregate_type",
            "aggregate_id",
            "aggregate_version",
            "event_type",
            "schema_version",
            "payload",
            "headers",
            "occurred_at",
        ];
        let off: Vec<_> = off
            .iter()
            .filter(|role| !written.contains(&format!("columns.{role}")))
            .map(|role| format!("columns.{role} = false\n"))
            .collect();
        let topic = match written.contains("topic") {
            true => "",
            false => "topic = \"t\"",
        };
        let mapping = mapping(&format!(
            "table = \"outbox\"\nkey = \"\"\n{topic}\n{written}\n{}",
            off.concat()
        ));
        let relation = Relation {
            id: 1,
            namespace: "public".into(),
            name: "outbox".into(),
            columns: vec![Column {
                name: "c".into(),
                type_oid,
            }],
        };
        let shape = Shape::new(&relation, &mapping, &Types::default());
        assert_eq!(shape.fault, None, "{written}");
        misfits(&shape).iter().map(|misfit| misfit.never).collect()
    }

    #[test]
    fn each_use_of_a_column_has_types_that_suit_it() {
        const DROPS: &str = "columns.payload = \"c\"\njson_nulls = \"drop\"";
        const EXPANDS: &str = "columns.payload = \"c\"\nexpand_json = true\njson_nulls = \"drop\"";
        const PARTITION: &str = "additional = [{ column = \"c\", placement = \"partition\" }]";
        for (written, type_oid, expected) in [
            ("columns.headers = \"c\"", JSONB, None),
            ("columns.headers = \"c\"", TEXT, Some(false)),
            ("columns.headers = \"c\"", INT4, Some(true)),
            ("columns.occurred_at = \"c\"", TIMESTAMPTZ, None),
            ("columns.occurred_at = \"c\"", INT4, None),
            ("columns.occurred_at = \"c\"", TEXT, Some(false)),
            ("columns.occurred_at = \"c\"", BOOL, Some(true)),
            ("timestamp_column = \"c\"", TIMESTAMPTZ, None),
            ("timestamp_column = \"c\"", BYTEA, Some(true)),
            ("tracing_column = \"c\"", TEXT, None),
            ("tracing_column = \"c\"", JSONB, Some(false)),
            ("columns.payload = \"c\"", INT4, None),
            (DROPS, JSONB, None),
            (DROPS, TEXT, Some(false)),
            (EXPANDS, TEXT, None),
            (EXPANDS, JSONB, Some(false)),
            ("topic = \"{c}\"", TEXT, None),
            ("topic = \"{c}\"", INT4, None),
            ("topic_column = \"c\"", BYTEA, Some(true)),
            ("topic = \"x.{c}\"", JSONB, Some(false)),
            (PARTITION, INT4, None),
            (PARTITION, TEXT, Some(false)),
            (PARTITION, BYTEA, Some(true)),
        ] {
            let found = judge(written, type_oid);
            assert_eq!(found, Vec::from_iter(expected), "{written}, {type_oid}");
        }
    }
}
