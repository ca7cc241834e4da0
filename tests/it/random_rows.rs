//! Random rows of random column types come back byte by byte.

use std::fmt::Write as _;

use crate::harness::{
    Dice, Scene,
    sql::{hex, quote},
};

/// How PostgreSQL writes values for the publisher, whatever a session is set to.
const PINNED: &str = "SET datestyle = 'ISO, MDY'; SET intervalstyle = 'postgres'; SET timezone = 'UTC'; SET extra_float_digits = 1; SET bytea_output = 'hex'; SET client_encoding = 'UTF8'";

const TYPES: [&str; 40] = [
    "boolean",
    "smallint",
    "integer",
    "bigint",
    "numeric",
    "numeric(20,5)",
    "real",
    "double precision",
    "text",
    "varchar(40)",
    "char(12)",
    "bytea",
    "uuid",
    "date",
    "time",
    "timetz",
    "timestamp",
    "timestamptz",
    "interval",
    "json",
    "jsonb",
    "inet",
    "cidr",
    "macaddr",
    "int4range",
    "tstzrange",
    "integer[]",
    "text[]",
    "bytea[]",
    "point",
    "box",
    "varbit",
    "oid",
    "pg_lsn",
    "tsvector",
    "mood",
    "short_text",
    "bytes",
    "pair",
    "\"char\"",
];

const OWN_TYPES: &str = "CREATE TYPE mood AS ENUM ('sad', 'so, so', 'ha\"ppy'); CREATE DOMAIN short_text AS varchar(40) CHECK (length(VALUE) < 41);
    CREATE DOMAIN raw AS bytea; CREATE DOMAIN bytes AS raw; CREATE TYPE pair AS (a integer, b text)";

fn text(dice: &mut Dice, longest: u64) -> String {
    const CHARS: [char; 26] = [
        'a', 'Z', '0', ' ', '\t', '\n', '\r', '\\', '\'', '"', ',', '{', '}', '(', ')', 'é', 'ß',
        '漢', '😀', '\u{1}', '\u{7f}', '\u{feff}', '\u{2028}', '%', '$', ':',
    ];
    (0..dice.between(0, longest))
        .map(|_| *dice.pick(&CHARS))
        .collect()
}

fn bytes(dice: &mut Dice) -> Vec<u8> {
    (0..dice.between(0, 60))
        .map(|_| dice.next() as u8)
        .collect()
}

/// JSON of random depth, with the blanks and the numbers that only its own text keeps.
fn json(dice: &mut Dice, depth: u64) -> String {
    match dice.between(0, if depth == 0 { 5 } else { 8 }) {
        0 => "null".into(),
        1 => "true".into(),
        2 => format!("{}.{:03}", dice.next() as i64, dice.between(0, 1000)),
        3 => format!("{}e{}", dice.between(1, 10), dice.between(0, 30)),
        4 => serde_json::to_string(&text(dice, 12).replace('\0', "")).expect("JSON"),
        5 => {
            let items: Vec<_> = (0..dice.between(0, 4))
                .map(|_| json(dice, depth - 1))
                .collect();
            format!("[{}]", items.join(" , "))
        }
        _ => {
            let fields: Vec<_> = (0..dice.between(0, 4))
                .map(|_| {
                    format!(
                        "{} : {}",
                        serde_json::to_string(&text(dice, 5)).expect("JSON"),
                        json(dice, depth - 1)
                    )
                })
                .collect();
            format!("{{{}}}", fields.join(",\t"))
        }
    }
}

/// An SQL expression of the type.
fn value(dice: &mut Dice, kind: &str) -> String {
    if dice.between(0, 7) == 0 {
        return "NULL".into();
    }
    let number = dice.next() as i64;
    let small = dice.between(0, 1_000_000);
    let text_of = |text: &str| format!("{}::{kind}", quote(Some(text)));
    let moment = |dice: &mut Dice| {
        let year = dice.between(1, 4000);
        let era = if dice.between(0, 5) == 0 { " BC" } else { "" };
        let (month, day, hour, minute) = (
            dice.between(1, 13),
            dice.between(1, 29),
            dice.between(0, 24),
            dice.between(0, 60),
        );
        format!(
            "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02}.{:06}{era}",
            dice.between(0, 60),
            dice.between(0, 1_000_000)
        )
    };
    match kind {
        "boolean" => (if number % 2 == 0 { "true" } else { "false" }).into(),
        "smallint" => format!("({})::smallint", number as i16),
        "integer" => format!("({})::integer", number as i32),
        "bigint" => format!("'{number}'::bigint"),
        "numeric" => match small % 9 {
            0 => "'NaN'::numeric".into(),
            _ => format!("'{number}.{small:07}00'::numeric"),
        },
        "numeric(20,5)" => format!("'{}.{small}'::numeric(20,5)", number % 100_000),
        "real" | "double precision" => match small % 9 {
            0 => text_of("NaN"),
            1 => text_of("-Infinity"),
            2 => text_of("-0"),
            _ => format!("('{number}'::{kind} / {})", small + 1),
        },
        "text" | "varchar(40)" | "short_text" => text_of(&text(dice, 40)),
        "char(12)" => text_of(&text(dice, 12)),
        "\"char\"" => text_of("x"),
        "bytea" | "bytes" => format!("{}::{kind}", hex(&bytes(dice))),
        "uuid" => format!("md5('{number}')::uuid"),
        "date" => match small % 9 {
            0 => text_of("infinity"),
            _ => format!("'{}'::timestamp::date", moment(dice)),
        },
        "time" => format!("'{}'::timestamp::time", moment(dice)),
        "timetz" => format!(
            "'{:02}:{:02}:07.5+{:02}:30'::timetz",
            dice.between(0, 24),
            dice.between(0, 60),
            dice.between(0, 12)
        ),
        "timestamp" | "timestamptz" => match small % 9 {
            0 => text_of("infinity"),
            1 => text_of("-infinity"),
            _ => text_of(&moment(dice)),
        },
        "interval" => text_of(&format!(
            "{} months {} days {} seconds",
            small % 50,
            number % 1000,
            small
        )),
        "json" | "jsonb" => text_of(&json(dice, 4)),
        "inet" => text_of(&format!(
            "10.{}.{}.7/{}",
            small % 256,
            small / 256 % 256,
            small % 33
        )),
        "cidr" => text_of(&format!("{}.0.0.0/8", small % 224)),
        "macaddr" => text_of(&format!(
            "08:00:2b:01:{:02x}:{:02x}",
            small % 256,
            small / 7 % 256
        )),
        "int4range" => text_of(&format!("[{},{})", small, small + small % 5)),
        "tstzrange" => text_of("[2024-02-29 00:00+02,infinity)"),
        "integer[]" => text_of(&format!("{{{},NULL,-{small}}}", small)),
        "text[]" => format!(
            "ARRAY[{}, NULL, {}]",
            quote(Some(&text(dice, 9))),
            quote(Some(&text(dice, 9)))
        ),
        "bytea[]" => format!("ARRAY[{}]", hex(&bytes(dice))),
        "point" => text_of(&format!("({},{}.5)", small, small)),
        "box" => text_of(&format!("(({small},1),(2,-{small})))").replace(")))", "))")),
        "varbit" => format!("B'{small:b}'::varbit"),
        "oid" => format!("'{}'::oid", number as u32),
        "pg_lsn" => text_of(&format!("{:X}/{:X}", small, number as u32)),
        "tsvector" => text_of("'a b':1A c:2"),
        "mood" => text_of(["sad", "so, so", "ha\"ppy"][(small % 3) as usize]),
        "pair" => format!("ROW({}, {})::pair", small, quote(Some(&text(dice, 9)))),
        other => panic!("no values of type {other}"),
    }
}

/// The column by its type's output function, as the stream has it; a cast to text gives another text
/// of a boolean and of a char(n).
fn output(column: &str) -> String {
    format!("CASE WHEN num_nulls({column}) = 0 THEN convert_to(format('%s', {column}), 'UTF8') END")
}

#[test]
fn random_rows_of_random_types_come_back_byte_by_byte() {
    let mut dice = Dice::new();
    for _ in 0..3 {
        let scene = Scene::new();
        scene.create_topic("all", 3, &[]);
        let role = scene.server.publisher_name();
        let kinds: Vec<&str> = (0..dice.between(5, 30))
            .map(|_| *dice.pick(&TYPES))
            .collect();
        let payload = *dice.pick(&[
            "text",
            "json",
            "jsonb",
            "bytea",
            "bytes",
            "varchar(40)",
            "integer[]",
            "pair",
        ]);
        let key = dice.between(0, kinds.len() as u64) as usize;
        let mut ddl =
            format!("CREATE TABLE public.outbox (no bigint PRIMARY KEY, payload {payload}");
        let mut additional = String::new();
        for (n, kind) in kinds.iter().enumerate() {
            write!(ddl, ", c{n} {kind}").expect("a String");
            write!(
                additional,
                "{{ column = \"c{n}\", placement = \"header\" }}, "
            )
            .expect("a String");
        }
        scene.sql.run(&format!(
            "SET ROLE {role}; {OWN_TYPES}; {ddl}); RESET ROLE; {PINNED}"
        ));
        let mut walpost = scene.walpost();
        walpost.outbox(format!(
            "[[outbox]]\ntable = \"public.outbox\"\ntopic = \"{}\"\nkey = \"c{key}\"\nadditional = [{additional}]\n[outbox.columns]\n\
             event_id = \"no\"\naggregate_type = false\naggregate_id = false\naggregate_version = false\nevent_type = false\n\
             schema_version = false\nheaders = false\noccurred_at = false\n",
            scene.topic("all")
        ));
        walpost.command(&["init"]).expect(0, &[]);
        let mut run = scene.started(&walpost);
        let rows = 150;
        for no in 0..rows {
            let mut values = format!("{no}, {}", value(&mut dice, payload));
            for kind in &kinds {
                write!(values, ", {}", value(&mut dice, kind)).expect("a String");
            }
            scene
                .sql
                .run(&format!("INSERT INTO public.outbox VALUES ({values})"));
        }
        let mut records = scene.kafka.wait(&scene.topic("all"), rows, 60);
        records.sort_by_key(|r| r.header("event_id").and_then(|id| id.parse::<usize>().ok()));
        // What a bytea is in a header is its text; as key and value it is its bytes.
        let raw = |column: &str, kind: &str| match kind {
            "bytea" | "bytes" => format!("{column}::bytea"),
            _ => output(column),
        };
        let mut columns = format!(
            "{}, {}",
            raw("payload", payload),
            raw(&format!("c{key}"), kinds[key])
        );
        for n in 0..kinds.len() {
            write!(columns, ", {}", output(&format!("c{n}"))).expect("a String");
        }
        let stored = scene
            .sql
            .typed(&format!("SELECT {columns} FROM public.outbox ORDER BY no"));
        assert_eq!(records.len(), stored.len());
        for (no, (record, row)) in records.iter().zip(&stored).enumerate() {
            let bytes = |column: usize| row.get::<_, Option<Vec<u8>>>(column);
            assert_eq!(record.value, bytes(0), "row {no}: payload {payload}");
            assert_eq!(record.key, bytes(1), "row {no}: key {}", kinds[key]);
            for (n, kind) in kinds.iter().enumerate() {
                let header = record
                    .headers
                    .iter()
                    .find(|(name, _)| *name == format!("c{n}"));
                let header = header.and_then(|(_, value)| value.clone());
                assert_eq!(header, bytes(n + 2), "row {no}: c{n} {kind}");
            }
        }
        run.stop(0);
    }
}
