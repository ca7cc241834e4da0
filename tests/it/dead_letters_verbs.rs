//! What operators see of dead letters and do with them: by the command line, by SQL, over HTTP.

use serde_json::{Value, json};

use crate::harness::{Scene, Walpost, postgres, sql::Sql, until};

/// The table's columns that a list shows.
const LISTED: [&str; 22] = [
    "id",
    "slot",
    "outbox",
    "event_id",
    "position_lsn",
    "position_ordinal",
    "committed_at",
    "topic",
    "partition",
    "record_ms",
    "status",
    "error_class",
    "error_code",
    "error_text",
    "attempts",
    "first_failed_at",
    "last_failed_at",
    "next_retry_at",
    "held_behind",
    "acted_by",
    "acted_at",
    "life",
];

/// Puts a letter into the table as a publisher would; columns that are not given are plain.
#[track_caller]
fn letter(scene: &Scene, status: &str, event: &str, columns: &[(&str, &str)]) -> i64 {
    let mut all = vec![
        ("slot", format!("'{}'", scene.tag)),
        ("outbox", "'public.outbox'".into()),
        ("event_id", format!("'{event}'")),
        (
            "position_lsn",
            format!(
                "'0/{:X}'",
                0x1000 + scene.sql.number("SELECT count(*) FROM walpost.dead_letter")
            ),
        ),
        ("position_ordinal", "1".into()),
        ("committed_at", "'2026-01-02 03:04:05.5+00'".into()),
        ("topic", format!("'{}'", scene.topic("order"))),
        ("key", "'\\x4b'".into()),
        (
            "headers",
            format!(r#"'[["event_id", "{event}"], ["h", null]]'"#),
        ),
        ("record_ms", "1000".into()),
        ("payload", r#"'{"secret": 1}'::bytea"#.into()),
        ("status", format!("'{status}'")),
        ("error_class", "'event'".into()),
        ("error_code", "'MSG_SIZE_TOO_LARGE'".into()),
        ("error_text", "'too large'".into()),
        ("first_failed_at", "'2026-01-02 03:04:06+00'".into()),
        ("life", "1".into()),
    ];
    for (name, value) in columns {
        all.retain(|(column, _)| column != name);
        all.push((name, (*value).into()));
    }
    let (names, values): (Vec<&str>, Vec<String>) = all.into_iter().unzip();
    scene.sql.number(&format!(
        "INSERT INTO walpost.dead_letter ({}) VALUES ({}) RETURNING id",
        names.join(", "),
        values.join(", ")
    ))
}

fn status_of(scene: &Scene, id: i64) -> String {
    scene
        .sql
        .value(&format!(
            "SELECT status FROM walpost.dead_letter WHERE id = {id}"
        ))
        .unwrap_or_default()
}

/// Who, verb, letter and event of each action, in order.
fn deeds(scene: &Scene) -> Vec<String> {
    scene.sql.column(
        "SELECT concat_ws(' ', who, verb, dead_letter_id, event_id, detail->>'reason') FROM walpost.audit_log ORDER BY id",
    )
}

#[track_caller]
fn ids(output: &Value) -> Vec<i64> {
    let letters = output.as_array().unwrap_or_else(|| panic!("{output}"));
    letters.iter().filter_map(|l| l["id"].as_i64()).collect()
}

/// A database that is set up, without a publisher.
fn scene() -> (Scene, Walpost) {
    let scene = Scene::new();
    let walpost = scene.walpost();
    walpost.init();
    (scene, walpost)
}

#[test]
fn a_list_has_the_tables_columns_and_hides_the_applications_data() {
    let (scene, walpost) = scene();
    let list = |arguments: &[&str]| {
        let arguments = [&["dead-letters", "list", "--json"], arguments].concat();
        walpost.command(&arguments).expect(0, &[]).json()
    };
    assert_eq!(list(&[]), json!([]));
    walpost
        .command(&["dead-letters", "list"])
        .expect(0, &["no dead letters"]);
    let a = letter(&scene, "pending", "e1", &[]);
    let b = letter(
        &scene,
        "dead",
        "e2",
        &[
            ("key", "'\\xff00'"),
            ("payload", "NULL"),
            ("headers", "NULL"),
            ("raw", r#"'{"headers": "[1]", "x": null}'"#),
            ("topic", "''"),
            ("error_code", "'headers_not_an_object'"),
            ("first_failed_at", "'2026-02-03 00:00:00+00'"),
        ],
    );
    let c = letter(
        &scene,
        "held",
        "e3",
        &[
            ("held_behind", &a.to_string()),
            ("key", "'K2'"),
            ("first_failed_at", "NULL"),
        ],
    );
    letter(&scene, "dead", "e4", &[("slot", "'another'")]);

    let all = list(&[]);
    assert_eq!(ids(&all), [a, b, c], "by id, and of this slot alone");
    for row in all.as_array().unwrap() {
        let mut columns: Vec<&String> = row.as_object().unwrap().keys().collect();
        let mut wanted = LISTED.to_vec();
        columns.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(columns, wanted);
    }
    assert_eq!(
        (
            &all[0]["position_lsn"],
            &all[0]["committed_at"],
            &all[0]["first_failed_at"]
        ),
        (
            &json!("0/1000"),
            &json!("2026-01-02T03:04:05.5Z"),
            &json!("2026-01-02T03:04:06Z")
        )
    );
    assert_eq!(
        (&all[2]["held_behind"], &all[0]["partition"]),
        (&json!(a), &Value::Null)
    );

    let full = list(&["--payload"]);
    assert_eq!(
        (&full[0]["key"], &full[0]["payload"], &full[0]["raw"]),
        (&json!("K"), &json!(r#"{"secret": 1}"#), &Value::Null)
    );
    assert_eq!(full[0]["headers"], json!([["event_id", "e1"], ["h", null]]));
    assert_eq!(
        (&full[1]["key_base64"], full[1].get("key")),
        (&json!("/wA="), None)
    );
    assert_eq!(
        (&full[1]["payload"], &full[1]["raw"]),
        (&Value::Null, &json!({"headers": "[1]", "x": null}))
    );

    let limited = ["--limit", "2"];
    for (selectors, found) in [
        (&limited[..], vec![a, b]),
        (&["--event-id", "e2"], vec![b]),
        (&["--key", "K"], vec![a]),
        (&["--topic", &scene.topic("order")], vec![a, c]),
        (&["--code", "headers_not_an_object"], vec![b]),
        (&["--status", "dead,held"], vec![b, c]),
        (&["--status", "resolved"], vec![]),
        (&["--since", "2026-01-15"], vec![b]),
        (&["--until", "2026-01-02T03:04:06Z"], vec![c]),
        (&["--until", "2026-01-15", "--status", "pending"], vec![a]),
        (&[&c.to_string(), &a.to_string()], vec![a, c]),
        (&["--all"], vec![a, b, c]),
    ] {
        assert_eq!(ids(&list(selectors)), found, "{selectors:?}");
    }
    let human = walpost.command(&["dead-letters", "list"]).expect(
        0,
        &[
            "e1",
            "MSG_SIZE_TOO_LARGE",
            "0/1000:1",
            &format!("behind {a}"),
        ],
    );
    assert!(!human.out.contains("secret"), "{}", human.out);
    walpost
        .command(&["dead-letters", "list", "999999"])
        .expect(1, &["999999", &scene.tag]);
    walpost
        .command(&["dead-letters", "show", "999999"])
        .expect(1, &["999999"]);
    let shown = walpost
        .command(&["dead-letters", "show", &b.to_string()])
        .expect(0, &["e2", "headers_not_an_object", "not UTF-8"]);
    assert!(shown.out.contains(r#"headers = "[1]""#), "{}", shown.out);
    let shown = walpost.command(&["dead-letters", "show", &a.to_string(), "--json"]);
    assert_eq!(shown.json()["letter"], full[0]);
}

#[test]
fn a_verb_takes_what_it_can_act_on_and_tells_what_it_refuses() {
    let (scene, walpost) = scene();
    let verb = |arguments: &[&str]| walpost.command(&[&["dead-letters"], arguments].concat());
    let head = letter(
        &scene,
        "pending",
        "e1",
        &[("next_retry_at", "now() + interval '1 hour'")],
    );
    let held = letter(&scene, "held", "e2", &[("held_behind", &head.to_string())]);
    let dead = letter(&scene, "dead", "e3", &[("key", "NULL")]);
    let sent = letter(
        &scene,
        "resolved",
        "e4",
        &[
            ("key", "NULL"),
            ("acted_by", "'ann'"),
            ("acted_at", "'2026-01-02 03:04:05+00'"),
        ],
    );
    let text = |id: i64| id.to_string();

    for usage in [
        &["replay"][..],
        &["ignore", "--reason", "x"],
        &["resend"],
        &["replay", "--limit", "1"],
        &["ignore", &text(head)],
        &["ignore", &text(head), "--reason", " "],
        &["replay", "not-a-number"],
    ] {
        verb(usage).expect(2, &[]);
    }
    verb(&["replay", "999999"]).expect(1, &["999999"]);
    let refused =
        verb(&["replay", &text(held)]).expect(1, &[&format!("is held and waits behind {head}")]);
    assert_eq!(refused.out, "");
    verb(&["replay", &text(sent)]).expect(1, &["is resolved (by ann at 2026-01-02T03:04:05Z)"]);
    verb(&["replay", "--event-id", "e4"]).expect(1, &["is resolved (by ann"]);
    verb(&["replay", "--event-id", "unknown"]).expect(1, &["no dead letter that matches"]);
    assert_eq!(deeds(&scene), [""; 0]);

    // Of a key with held rows only its head is meant.
    verb(&["replay", "--key", "K"]).expect(0, &[&format!("dead letter {head}: replaying")]);
    assert_eq!(
        scene.sql.value(&format!("SELECT concat_ws(' ', status, acted_by, next_retry_at) FROM walpost.dead_letter WHERE id = {head}")),
        Some(format!("replaying {}", scene.server.publisher_name()))
    );
    // Each one that was named is tried.
    let mixed = verb(&[
        "ignore",
        &text(head),
        &text(held),
        &text(dead),
        "999999",
        "--reason",
        "told the owner",
        "--json",
    ])
    .expect(1, &[]);
    assert_eq!(
        mixed.json()["done"],
        json!([{"id": held, "status": "ignored"}, {"id": dead, "status": "ignored"}])
    );
    let told = mixed.json()["refused"].clone();
    assert_eq!(
        (told[0]["id"].as_i64(), told[1]["id"].as_i64()),
        (Some(999_999), Some(head))
    );
    assert!(
        told[1]["error"]
            .as_str()
            .is_some_and(|text| text.contains("is replaying")),
        "{told}"
    );
    verb(&["ignore", &text(dead), "--reason", "again"]).expect(1, &["walpost", "is ignored"]);

    // All that can be, and nothing is no failure.
    let more = letter(&scene, "dead", "e5", &[]);
    let behind = letter(&scene, "held", "e6", &[("held_behind", &more.to_string())]);
    verb(&["replay", "--all"]).expect(0, &[&format!("dead letter {more}: replaying")]);
    verb(&["replay", "--all"]).expect(0, &[]);
    verb(&["ignore", "--all", "--reason", "over"])
        .expect(0, &[&format!("dead letter {behind}: ignored")]);

    // Resent by letter, by event, and an event without any letter.
    let resent =
        verb(&["resend", &text(sent), "--event-id", "never seen", "--json"]).expect(0, &[]);
    let made: Vec<i64> = ids(&resent.json()["done"]);
    assert_eq!(made.len(), 2);
    let columns = "SELECT concat_ws(' ', slot, event_id, topic, status, error_class, position_lsn) FROM walpost.dead_letter ORDER BY id DESC LIMIT 2";
    assert_eq!(
        scene.sql.column(columns),
        [
            format!("{} never seen  replaying resend", scene.tag),
            format!("{} e4 {} replaying resend", scene.tag, scene.topic("order"))
        ]
    );
    verb(&["resend", "--event-id", "e4"]).expect(
        1,
        &[&format!(
            "dead letter {} cannot be resent: it is replaying",
            made[0]
        )],
    );
    letter(&scene, "held", "e7", &[("held_behind", "1")]);
    verb(&["resend", "--event-id", "e7"]).expect(1, &["is held and waits behind 1"]);

    let who = scene.server.publisher_name();
    assert_eq!(
        deeds(&scene),
        [
            format!("{who} replay {head} e1"),
            format!("{who} ignore {held} e2 told the owner"),
            format!("{who} ignore {dead} e3 told the owner"),
            format!("{who} replay {more} e5"),
            format!("{who} ignore {behind} e6 over"),
            format!("{who} resend {} e4", made[0]),
            format!("{who} resend {} never seen", made[1]),
        ]
    );
    let shown = verb(&["show", &text(held)]).expect(0, &["ignore by", "told the owner"]);
    assert!(
        shown.out.contains("secret"),
        "a letter that is shown has its payload"
    );

    // Each deed wakes the publisher up; the message names the letter and orders nothing.
    let messages = format!(
        "SELECT convert_from(substr(data, strpos_from), 'UTF8') FROM (SELECT data, position('\\x7b2276'::bytea in data) AS strpos_from
           FROM pg_logical_slot_peek_binary_changes('{tag}', NULL, NULL, 'proto_version', '1', 'publication_names', '{tag}', 'messages', 'true')
           WHERE get_byte(data, 0) = ascii('M')) AS m",
        tag = scene.tag
    );
    let messages: Vec<Value> = scene
        .sql
        .column(&messages)
        .iter()
        .map(|text| serde_json::from_str(text).expect("JSON"))
        .collect();
    assert_eq!(messages.len(), 7, "{messages:?}");
    assert_eq!(messages[0], json!({"v": 1, "slot": scene.tag, "id": head}));
}

#[test]
fn of_two_operators_at_once_one_wins_and_the_other_is_told_by_whom() {
    let (scene, walpost) = scene();
    let first = Sql::new(scene.server.superuser(&scene.tag));
    let waits = || {
        until("the second operator waits for the first", 60, || {
            let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                AND application_name = 'walpost:dead-letters' AND wait_event_type = 'Lock'";
            (scene.sql.number(waiting) == 1).then_some(())
        });
    };
    let id = letter(&scene, "dead", "e1", &[]);
    for (sql, command, told) in [
        (
            format!("SELECT walpost.replay({id})"),
            vec!["replay".to_owned(), id.to_string()],
            "is replaying (by postgres at 2",
        ),
        (
            "SELECT walpost.resend('sent')".to_owned(),
            vec!["resend".into(), "--event-id".into(), "sent".into()],
            "is replaying (by postgres at 2",
        ),
    ] {
        first.run(&format!("BEGIN; {sql}"));
        let command: Vec<&str> = ["dead-letters"]
            .into_iter()
            .chain(command.iter().map(String::as_str))
            .collect();
        let mut second = walpost.spawn(&command);
        waits();
        first.run("COMMIT");
        second.expect_end(1, &[told], 60);
    }
    // The one that is rolled back was none.
    scene.sql.run(&format!(
        "UPDATE walpost.dead_letter SET status = 'pending' WHERE id = {id}"
    ));
    first.run(&format!("BEGIN; SELECT walpost.ignore({id}, 'x')"));
    let number = id.to_string();
    let mut second = walpost.spawn(&["dead-letters", "replay", &number]);
    waits();
    first.run("ROLLBACK");
    second.expect_end(0, &["replaying"], 60);
    assert_eq!(deeds(&scene).len(), 3);
}

#[test]
fn an_operator_needs_usage_select_and_execute_and_nothing_else() {
    let (scene, mut walpost) = scene();
    let id = letter(&scene, "dead", "e1", &[]);
    let (ops, nobody) = (format!("{}_ops", scene.tag), format!("{}_none", scene.tag));
    scene.sql.run(&format!(
        "CREATE ROLE {ops} LOGIN PASSWORD 'x'; CREATE ROLE {nobody} LOGIN PASSWORD 'x'"
    ));
    let _roles = Roles(&scene, [ops.clone(), nobody.clone()]);
    let printed = walpost.command(&["init", "--print-sql"]).expect(0, &[]).out;
    let grants: Vec<String> = printed
        .lines()
        .filter(|line| line.contains("walpost_operator"))
        .map(|line| {
            line.trim_start_matches("-- ")
                .replace("walpost_operator", &ops)
        })
        .filter(|line| line.starts_with("GRANT"))
        .collect();
    assert_eq!(grants.len(), 3, "{printed}");
    let url = |role: &str| {
        let (host, port) = scene.server.address();
        postgres::url(role, "x", &host, port, &scene.tag)
    };
    walpost.unset("postgres.url");
    walpost.environment("DATABASE_URL", &url(&ops));
    // The message gives exactly the commands that are needed.
    let advice = walpost
        .command(&["dead-letters", "list"])
        .expect(1, &["GRANT USAGE ON SCHEMA walpost"]);
    let (_, commands) = advice.err.split_once("an operator: ").expect("advice");
    scene.sql.run(&format!("BEGIN; {commands}; ROLLBACK"));
    scene.sql.run(&grants.join("\n"));
    let number = id.to_string();
    walpost
        .command(&["dead-letters", "list"])
        .expect(0, &["e1"]);
    walpost
        .command(&["dead-letters", "show", &number])
        .expect(0, &["e1"]);
    walpost
        .command(&["dead-letters", "replay", &number])
        .expect(0, &["replaying"]);
    walpost
        .command(&["dead-letters", "ignore", &number, "--reason", "x"])
        .expect(1, &[&format!("by {ops}")]);
    walpost
        .command(&["dead-letters", "resend", "--event-id", "e9"])
        .expect(0, &["replaying"]);
    assert_eq!(deeds(&scene)[0], format!("{ops} replay {id} e1"));
    let operator = Sql::new(url(&ops).parse().expect("a URL"));
    for forbidden in [
        "UPDATE walpost.dead_letter SET status = 'resolved'",
        "DELETE FROM walpost.audit_log",
        "SELECT walpost.seize(1, 'x', ARRAY['dead'])",
        "SELECT walpost.acted(l, 'x', NULL) FROM walpost.dead_letter l",
        "SELECT * FROM walpost.slot",
    ] {
        let error = operator.try_rows(forbidden).expect_err(forbidden);
        assert_eq!(
            error.code().map(|code| code.code()),
            Some("42501"),
            "{forbidden}"
        );
    }

    walpost.environment("DATABASE_URL", &url(&nobody));
    scene.sql.run(&format!(
        "GRANT USAGE ON SCHEMA walpost TO {nobody}; GRANT SELECT ON walpost.dead_letter TO {nobody}"
    ));
    let dead = letter(&scene, "dead", "e2", &[]);
    walpost
        .command(&["dead-letters", "replay", &dead.to_string()])
        .expect(1, &["42501", "GRANT EXECUTE ON FUNCTION walpost.replay"]);
    assert_eq!(status_of(&scene, dead), "dead");
}

/// Roles are the server's, so they outlive the database.
struct Roles<'s>(&'s Scene, [String; 2]);

impl Drop for Roles<'_> {
    fn drop(&mut self) {
        for role in &self.1 {
            let _ = self
                .0
                .sql
                .try_rows(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
        }
    }
}

#[test]
fn with_several_slots_an_event_without_a_letter_is_sent_by_the_configured_one() {
    let (scene, walpost) = scene();
    scene
        .sql
        .run("INSERT INTO walpost.slot (slot, state) VALUES ('aaa', 'ready')");
    let error = scene
        .sql
        .try_rows("SELECT walpost.resend('e1')")
        .expect_err("nobody knows whose it is");
    assert_eq!(error.code().map(|code| code.code()), Some("P0001"));
    walpost
        .command(&["dead-letters", "resend", "--event-id", "e1"])
        .expect(0, &["replaying"]);
    assert_eq!(
        scene.sql.column("SELECT slot FROM walpost.dead_letter"),
        [scene.tag.as_str()]
    );
    letter(&scene, "dead", "e2", &[("slot", "'aaa'")]);
    walpost
        .command(&["dead-letters", "resend", "--event-id", "e2"])
        .expect(0, &[]);
    assert_eq!(
        scene.sql.column(
            "SELECT slot FROM walpost.dead_letter WHERE error_class = 'resend' ORDER BY id"
        ),
        [scene.tag.as_str(), "aaa"]
    );
}

#[test]
fn without_the_schema_the_command_that_makes_it_is_named() {
    let scene = Scene::new();
    let walpost = scene.walpost();
    walpost
        .command(&["dead-letters", "list"])
        .expect(4, &["walpost init"]);
    walpost.init();
    scene.sql.run("UPDATE walpost.meta SET version = 1");
    walpost
        .command(&["dead-letters", "list"])
        .expect(2, &["walpost init"]);
}

#[test]
fn status_counts_letters_and_held_keys_also_without_a_publisher() {
    let (scene, mut walpost) = scene();
    let none =
        json!({"pending": 0, "replaying": 0, "held": 0, "dead": 0, "resolved": 0, "ignored": 0});
    let status = |walpost: &Walpost| walpost.command(&["status", "--json"]).expect(0, &[]).json();
    let seen = status(&walpost);
    assert_eq!(
        (&seen["dead_letters"], &seen["held_keys"]),
        (&none, &json!(0))
    );
    letter(&scene, "pending", "e1", &[]);
    letter(&scene, "held", "e2", &[]);
    letter(&scene, "held", "e3", &[]);
    letter(&scene, "dead", "e4", &[("key", "'other'")]);
    letter(&scene, "dead", "e5", &[("key", "NULL")]);
    letter(&scene, "resolved", "e6", &[("key", "'third'")]);
    letter(&scene, "dead", "e7", &[("slot", "'another'")]);
    scene.sql.run("SELECT walpost.resend('e6')");
    let seen = status(&walpost);
    assert_eq!(
        seen["dead_letters"],
        json!({"pending": 1, "replaying": 1, "held": 2, "dead": 2, "resolved": 1, "ignored": 0})
    );
    assert_eq!(
        seen["held_keys"], 2,
        "a NULL key is never held, nor is one that is sent again"
    );
    walpost.set("outbox.on_poison", "skip");
    assert_eq!(
        status(&walpost)["held_keys"],
        1,
        "under skip only what is held from before"
    );
    walpost.command(&["status"]).expect(
        0,
        &[
            "1 pending, 1 replaying, 2 held, 2 dead, 1 resolved",
            "audit log",
        ],
    );
}

#[test]
fn verbs_over_http_do_what_the_command_does() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let head = letter(&scene, "pending", "e0", &[]);
    let held = letter(&scene, "held", "e1", &[("held_behind", &head.to_string())]);
    let dead = letter(&scene, "dead", "e2", &[("key", "'other'")]);
    // Without brokers: it is started, holds the slot and sends nothing.
    let mut walpost = walpost;
    walpost.set("kafka.brokers", "127.0.0.1:1");
    let mut run = scene.started(&walpost);
    let post = |path: &str, body: &str| {
        let headers = [("Content-Type", "application/json")];
        let (code, text) = walpost.post(&format!("/api/dead-letters/{path}"), &headers, body);
        let json: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        (code, json)
    };
    let (code, listed) = walpost.get("/api/dead-letters").expect("an answer");
    assert_eq!(code, 200, "{listed}");
    let by_command = walpost
        .command(&["dead-letters", "list", "--json"])
        .expect(0, &[])
        .json();
    assert_eq!(
        serde_json::from_str::<Value>(&listed).expect("JSON"),
        by_command
    );
    let get = |query: &str| {
        let (code, text) = walpost
            .get(&format!("/api/dead-letters?{query}"))
            .expect("an answer");
        (
            code,
            serde_json::from_str::<Value>(&text).unwrap_or(Value::Null),
        )
    };
    let (code, full) = get("event_id=e2&payload=true");
    assert_eq!(
        (code, ids(&full), &full[0]["payload"]),
        (200, vec![dead], &json!(r#"{"secret": 1}"#))
    );
    assert_eq!(ids(&get("status=held,resolved").1), [held]);
    assert_eq!(ids(&get("limit=1&all").1).len(), 3);
    for bad in ["limit=x", "nothing=1", "status=lost", "since=soon", "id=x"] {
        assert_eq!(get(bad).0, 400, "{bad}");
    }

    assert_eq!(
        walpost
            .get(&format!("/api/dead-letters/{dead}/replay"))
            .expect("an answer")
            .0,
        405
    );
    for unknown in ["999999/replay", "x/replay", &format!("{dead}/delete")] {
        assert_eq!(post(unknown, "").0, 404, "{unknown}");
    }
    for bad in [
        "",
        "{}",
        r#"{"reason": " "}"#,
        "reason",
        r#"{"reson": "x"}"#,
    ] {
        assert_eq!(post(&format!("{held}/ignore"), bad).0, 400, "{bad}");
    }
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    let path = format!("/api/dead-letters/{held}/ignore");
    assert_eq!(walpost.post(&path, &form, r#"{"reason": "x"}"#).0, 415);
    for foreign in [("Host", "evil.example"), ("Origin", "http://evil.example")] {
        let headers = [("Content-Type", "application/json"), foreign];
        assert_eq!(
            walpost.post(&path, &headers, r#"{"reason": "x"}"#).0,
            403,
            "{foreign:?}"
        );
    }
    assert_eq!(deeds(&scene), [""; 0]);

    let (code, body) = post(&format!("{held}/replay"), "");
    assert_eq!(
        (code, &body["status"], &body["held_behind"]),
        (409, &json!("held"), &json!(head))
    );
    let done = post(&format!("{held}/ignore"), r#"{"reason": "http"}"#);
    assert_eq!(done, (200, json!({"id": held, "status": "ignored"})));
    let (code, body) = post(&format!("{held}/replay"), "");
    assert_eq!(
        (code, &body["status"], &body["acted_by"]),
        (
            409,
            &json!("ignored"),
            &json!(scene.server.publisher_name())
        )
    );
    assert!(
        body["acted_at"]
            .as_str()
            .is_some_and(|at| at.parse::<jiff::Timestamp>().is_ok()),
        "{body}"
    );
    assert!(
        body["error"]
            .as_str()
            .is_some_and(|text| text.contains("is ignored (by ")),
        "{body}"
    );
    assert_eq!(
        post(&format!("{dead}/replay"), ""),
        (200, json!({"id": dead, "status": "replaying"}))
    );
    let (code, body) = post(&format!("{held}/resend"), "{}");
    assert_eq!((code, &body["status"]), (200, &json!("replaying")));
    assert_eq!(deeds(&scene).len(), 3);
    let status = walpost.api_status();
    assert_eq!(
        (
            &status["dead_letters"]["replaying"],
            &status["dead_letters"]["ignored"]
        ),
        (&json!(2), &json!(1))
    );
    run.assert_alive();
}

#[test]
fn changes_need_the_token_which_is_printed_nowhere() {
    let scene = Scene::new();
    let mut walpost = scene.ready(1);
    let file = walpost.folder.join("token");
    walpost.set("http.admin_token_file", file.to_str().expect("a path"));
    walpost.set("kafka.brokers", "127.0.0.1:1");
    walpost.run_to_end().expect(2, &["admin_token_file"]);
    std::fs::write(&file, "tok-3n-secret\n").expect("write the token");
    let id = letter(&scene, "dead", "e1", &[]);
    let run = scene.started(&walpost);
    let path = format!("/api/dead-letters/{id}/replay");
    let mut said = String::new();
    for headers in [
        &[][..],
        &[("Authorization", "Bearer wrong")],
        &[("Authorization", "Basic tok-3n-secret")],
    ] {
        let (code, text) = walpost.post(&path, headers, "");
        assert_eq!(
            (code, status_of(&scene, id).as_str()),
            (401, "dead"),
            "{text}"
        );
        said += &text;
    }
    assert_eq!(walpost.get("/api/dead-letters").expect("an answer").0, 200);
    assert_eq!(
        walpost
            .get("/api/dead-letters?payload=1")
            .expect("an answer")
            .0,
        401
    );
    let foreign = [
        ("Authorization", "Bearer tok-3n-secret"),
        ("Origin", "null"),
    ];
    assert_eq!(walpost.post(&path, &foreign, "").0, 403);
    let (code, text) = walpost.post(&path, &[("Authorization", "Bearer tok-3n-secret")], "");
    assert_eq!(code, 200, "{text}");
    said += &(text + &run.log());
    assert!(!said.contains("tok-3n"), "{said}");
}

#[test]
fn a_database_that_does_not_answer_delays_neither_the_publisher_nor_the_next_request() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let id = letter(&scene, "dead", "e1", &[("key", "NULL")]);
    let mut run = scene.started(&walpost);
    walpost.wait_ready();
    let path = format!("/api/dead-letters/{id}/ignore");
    let ignore = || {
        let headers = [("Content-Type", "application/json")];
        walpost.post(&path, &headers, r#"{"reason": "x"}"#)
    };
    let other = Sql::new(scene.server.superuser(&scene.tag));
    other.run(&format!(
        "BEGIN; SELECT FROM walpost.dead_letter WHERE id = {id} FOR UPDATE"
    ));
    let (code, text) = ignore();
    assert_eq!(code, 503, "{text}");
    assert!(text.contains("held the letter"), "{text}");
    other.run("ROLLBACK");
    assert_eq!(ignore().0, 200);
    run.assert_alive();
}
