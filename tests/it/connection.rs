//! Ways to PostgreSQL: TLS in all its modes, Unix sockets.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
};

use crate::harness::{
    Scene,
    certificates::{Issued, issue},
    kafka::Kafka,
    postgres::{Cluster, put},
    process::{new_folder, server_user},
};

/// A cluster that takes the publisher by TLS alone, with a certificate for this name.
pub fn cluster(name: &str, authority: &Issued) -> Cluster {
    let server = issue(name, Some(authority));
    Cluster::prepared("ssl = on\nssl_ca_file = 'ca.crt'", |data| {
        put(data, "ca.crt", &authority.pem());
        put(data, "server.crt", &server.pem());
        put(data, "server.key", &server.key_pem());
        let access =
            "host all postgres 127.0.0.1/32 trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n";
        put(data, "pg_hba.conf", access.as_bytes());
    })
}

pub fn root_file(folder: &Path, name: &str, authority: &Issued) -> String {
    let path = folder.join(name);
    fs::write(&path, authority.pem()).expect("write a root certificate");
    path.display().to_string()
}

#[test]
fn every_ssl_mode_accepts_and_refuses_what_libpq_does() {
    let (authority, stranger) = (issue("walpost tests", None), issue("somebody else", None));
    let folder = new_folder("tls");
    let (ours, theirs) = (
        root_file(&folder, "ours.pem", &authority),
        root_file(&folder, "theirs.pem", &stranger),
    );
    // (the certificate's name, what the URL asks, whether that works)
    let cases = [
        ("localhost", "sslmode=verify-full&sslrootcert=OURS", true),
        ("localhost", "sslmode=verify-full&sslrootcert=THEIRS", false),
        ("localhost", "sslmode=verify-ca&sslrootcert=THEIRS", false),
        ("localhost", "sslmode=require&sslrootcert=THEIRS", false),
        ("localhost", "sslmode=require", true),
        ("localhost", "sslmode=prefer", true),
        ("localhost", "sslmode=disable", false),
        (
            "elsewhere.example",
            "sslmode=verify-full&sslrootcert=OURS",
            false,
        ),
        (
            "elsewhere.example",
            "sslmode=verify-ca&sslrootcert=OURS",
            true,
        ),
    ];
    for name in ["localhost", "elsewhere.example"] {
        let cluster = cluster(name, &authority);
        let scene = Scene::on(cluster.server.clone(), Kafka::shared());
        let (_, port) = scene.server.address();
        let plain = scene.server.url_at("localhost", port, &scene.tag);
        scene.create_topic("order", 1, &[]);
        let mut sent = 0;
        for (_, ask, works) in cases.iter().filter(|(of, ..)| *of == name) {
            let ask = ask.replace("OURS", &ours).replace("THEIRS", &theirs);
            let mut walpost = scene.walpost();
            walpost.set("postgres.url", format!("{plain}?{ask}"));
            let init = walpost.command(&["init", "--create-table"]);
            if !works {
                init.expect(1, &["ssl|tls|certificate|encryption|no pg_hba.conf entry"]);
                continue;
            }
            init.expect(0, &[]);
            let mut run = scene.started(&walpost);
            let ssl = scene.sql.value(&format!(
                "SELECT ssl FROM pg_stat_ssl WHERE pid = {}",
                scene.walsender()
            ));
            assert_eq!(ssl.as_deref(), Some("t"), "{ask}");
            sent += 1;
            scene.insert("a", 1);
            scene.judge_once(sent);
            run.stop(0);
        }
        assert!(sent > 0);
    }
}

#[test]
fn every_way_to_log_in_works_for_sql_and_for_replication() {
    let authority = issue("walpost tests", None);
    let cluster = cluster("localhost", &authority);
    let scene = Scene::on(cluster.server.clone(), Kafka::shared());
    let (user, password) = (
        scene.server.publisher_name(),
        scene.server.publisher_password(),
    );
    let (_, port) = scene.server.address();
    let folder = new_folder("client");
    let client = issue(user, Some(&authority));
    let write = |name: &str, bytes: Vec<u8>| {
        let path = folder.join(name);
        fs::write(&path, bytes).expect("write a client's file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
        path.display().to_string()
    };
    let certificate = write("client.crt", client.pem());
    let key = write("client.key", client.key_pem());
    let by_certificate = format!("sslmode=require&sslcert={certificate}&sslkey={key}");
    scene.create_topic("order", 1, &[]);
    let mut walpost = scene.walpost();
    walpost.set(
        "postgres.url",
        format!(
            "{}?sslmode=require",
            scene.server.url_at("localhost", port, &scene.tag)
        ),
    );
    walpost.init();
    // (the server's method, how the password is stored, whether the client has it, what the URL asks, whether that works)
    let cases = [
        (
            "scram-sha-256",
            "scram-sha-256",
            true,
            "sslmode=require&channel_binding=require",
            true,
        ),
        (
            "scram-sha-256",
            "scram-sha-256",
            true,
            "sslmode=require&channel_binding=disable",
            true,
        ),
        (
            "scram-sha-256",
            "scram-sha-256",
            true,
            "sslmode=require&options=-c%20geqo%3Doff%20-c%20datestyle%3DSQL",
            true,
        ),
        (
            "scram-sha-256",
            "scram-sha-256",
            true,
            "sslmode=disable&channel_binding=require",
            false,
        ),
        ("password", "scram-sha-256", true, "sslmode=require", true),
        (
            "password",
            "scram-sha-256",
            true,
            "sslmode=require&channel_binding=require",
            false,
        ),
        ("md5", "md5", true, "sslmode=require", true),
        ("md5", "md5", true, "sslmode=disable", true),
        ("cert", "md5", false, by_certificate.as_str(), true),
        ("cert", "md5", true, "sslmode=require", false),
        ("trust", "md5", false, "sslmode=prefer", true),
    ];
    let mut sent = 0;
    for (method, stored, has_password, ask, works) in cases {
        let kind = if method == "cert" { "hostssl" } else { "host" };
        cluster.access(&format!(
            "host all postgres 127.0.0.1/32 trust\n{kind} all all 127.0.0.1/32 {method}\n"
        ));
        cluster.server.admin().run(&format!(
            "SET password_encryption = '{stored}'; ALTER ROLE {user} PASSWORD '{password}'"
        ));
        let plain = match has_password {
            true => scene.server.url_at("localhost", port, &scene.tag),
            false => format!("postgres://{user}@localhost:{port}/{}", scene.tag),
        };
        walpost.set("postgres.url", format!("{plain}?{ask}"));
        if !works {
            walpost
                .run_to_end()
                .expect(1, &["channel binding|channel_binding|certificate"]);
            continue;
        }
        let mut run = scene.started(&walpost);
        sent += 1;
        scene.insert("a", 1);
        scene.judge_once(sent);
        run.stop(0);
    }
}

#[test]
fn a_unix_socket_works() {
    let folder = new_folder("socket");
    if let Some((uid, gid)) = server_user() {
        chown(&folder, Some(uid), Some(gid)).expect("chown");
    }
    let cluster = Cluster::prepared(
        &format!("unix_socket_directories = '{}'", folder.display()),
        |data| {
            let mut access =
                fs::read_to_string(data.join("pg_hba.conf")).expect("read pg_hba.conf");
            access += "local all all scram-sha-256\nlocal replication all scram-sha-256\n";
            fs::write(data.join("pg_hba.conf"), access).expect("write pg_hba.conf");
        },
    );
    let scene = Scene::on(cluster.server.clone(), Kafka::shared());
    let (_, port) = scene.server.address();
    let (user, password, tag) = (
        scene.server.publisher_name(),
        scene.server.publisher_password(),
        &scene.tag,
    );
    scene.create_topic("order", 1, &[]);
    let mut walpost = scene.walpost();
    walpost.set(
        "postgres.url",
        format!(
            "host={} port={port} user={user} password={password} dbname={tag}",
            folder.display()
        ),
    );
    walpost.init();
    let _run = scene.started(&walpost);
    let client = scene.sql.value(&format!(
        "SELECT client_addr FROM pg_stat_activity WHERE pid = {}",
        scene.walsender()
    ));
    assert_eq!(client, None, "it came by TCP");
    scene.insert("a", 2);
    scene.judge_once(2);
}
