//! Connections to a real server that this test starts for itself: TLS in each `sslmode`, each way
//! to log in, and what a refusal is taken for. Needs PostgreSQL's programs (in PATH, in
//! /usr/lib/postgresql, or in the folder that WALPOST_TEST_PG_BIN names) and `openssl`.

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tokio_postgres::NoTls;
use walpost::{
    config::{Env, Postgres, Secret},
    error::{Exit, Failure},
    pg::{conninfo::ConnInfo, replication, sql},
};

const PASSWORD: &str = "s3cr:t/@%";
const ENCODED: &str = "s3cr%3At%2F%40%25";

const HBA: &str = "\
local     all  peerless        trust
local     all  all             scram-sha-256
hostssl   all  by_certificate  127.0.0.1/32  cert
hostssl   all  plain_only      127.0.0.1/32  reject
hostnossl all  tls_only        127.0.0.1/32  reject
host      all  by_md5          127.0.0.1/32  md5
host      all  in_clear        127.0.0.1/32  password
host      all  all             127.0.0.1/32  scram-sha-256
";

struct Server {
    folder: tempfile::TempDir,
    bin: PathBuf,
    port: u16,
}

impl Server {
    async fn start() -> Server {
        let folder = tempfile::Builder::new()
            .prefix("walpost-conn")
            .tempdir()
            .unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        let port = free_port();
        let server = Server {
            folder,
            bin: bin(),
            port,
        };
        server.certificates();
        let data = server.path("data");
        fs::create_dir(&data).unwrap();
        shell(&format!(
            "id -u postgres >/dev/null 2>&1 && [ $(id -u) = 0 ] && chown -R postgres {} || true",
            server.folder.path().display()
        ));
        let program = |name: &str| server.bin.join(name).display().to_string();
        as_server(&[
            &program("initdb"),
            "-D",
            &data,
            "-U",
            "super",
            "--auth=trust",
            "-E",
            "UTF8",
            "--no-sync",
        ]);
        let settings = format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{folder}'\nwal_level = logical\nfsync = off\n\
            ssl = on\nssl_cert_file = '{folder}/server.crt'\nssl_key_file = '{folder}/server.key'\nssl_ca_file = '{folder}/ca.crt'\n",
            folder = server.folder.path().display()
        );
        fs::write(format!("{data}/postgresql.auto.conf"), settings).unwrap();
        fs::write(
            format!("{data}/pg_hba.conf"),
            format!("local all super trust\n{HBA}"),
        )
        .unwrap();
        as_server(&[
            &program("pg_ctl"),
            "-D",
            &data,
            "-w",
            "-l",
            &server.path("log"),
            "start",
        ]);
        server.sql(&format!(
            "CREATE ROLE walpost LOGIN REPLICATION PASSWORD '{PASSWORD}';
            ALTER ROLE walpost SET datestyle = 'German'; ALTER ROLE walpost SET bytea_output = 'escape';
            ALTER ROLE walpost SET timezone = 'Asia/Kathmandu'; ALTER ROLE walpost SET client_encoding = 'LATIN1';
            ALTER ROLE walpost SET search_path = 'elsewhere'; ALTER ROLE walpost SET synchronous_commit = off;
            ALTER ROLE walpost SET intervalstyle = 'iso_8601'; ALTER ROLE walpost SET extra_float_digits = -5;
            CREATE ROLE peerless LOGIN; CREATE ROLE by_certificate LOGIN REPLICATION;
            CREATE ROLE plain_only LOGIN PASSWORD '{PASSWORD}'; CREATE ROLE tls_only LOGIN PASSWORD '{PASSWORD}';
            CREATE ROLE in_clear LOGIN REPLICATION PASSWORD '{PASSWORD}';
            CREATE ROLE limited LOGIN PASSWORD '{PASSWORD}' CONNECTION LIMIT 0;
            SET password_encryption = md5; CREATE ROLE by_md5 LOGIN REPLICATION PASSWORD '{PASSWORD}';
            CREATE DATABASE app; CREATE DATABASE closed; REVOKE CONNECT ON DATABASE closed FROM PUBLIC;"
        )).await;
        server
    }

    /// Two authorities, a server certificate for localhost and 127.0.0.1, a client certificate
    /// with an encrypted key, and a list that revokes the server's.
    fn certificates(&self) {
        let script = r#"cd "$1"; exec 2>openssl.log; set -e
            for ca in ca other; do openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj "/CN=$ca" -keyout $ca.key -out $ca.crt; done
            openssl req -newkey rsa:2048 -nodes -subj /CN=server -keyout server.key -out server.csr
            printf 'subjectAltName=DNS:localhost,DNS:second.example,IP:127.0.0.1\n' >names
            openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.crt
            openssl req -newkey rsa:2048 -passout pass:key-secret -subj /CN=by_certificate -keyout client.key -out client.csr
            openssl x509 -req -in client.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -out client.crt
            chmod 600 *.key; : >index; echo 01 >crlnumber
            printf '[ca]\ndefault_ca=d\n[d]\ndatabase=index\ndefault_md=sha256\ncrlnumber=crlnumber\ndefault_crl_days=2\n' >ca.conf
            openssl ca -config ca.conf -keyfile ca.key -cert ca.crt -gencrl -out empty.crl
            openssl ca -config ca.conf -keyfile ca.key -cert ca.crt -revoke server.crt
            openssl ca -config ca.conf -keyfile ca.key -cert ca.crt -gencrl -out revoked.crl
            cp client.key exposed.key; chmod 644 exposed.key"#;
        let done = Command::new("bash")
            .args(["-c", script, "certificates", &self.path("")])
            .status()
            .unwrap();
        assert!(
            done.success(),
            "{}",
            fs::read_to_string(self.path("openssl.log")).unwrap_or_default()
        );
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Statements of the superuser, in one session.
    async fn sql(&self, text: &str) {
        let mut config = tokio_postgres::Config::new();
        config
            .host_path(self.folder.path())
            .port(self.port)
            .user("super")
            .dbname("postgres");
        let (client, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        for statement in text.split(';') {
            client.batch_execute(statement).await.unwrap();
        }
    }

    /// A URL with the right password, to 127.0.0.1 under the certificate's name unless `query` says otherwise.
    fn url(&self, user: &str, query: &str) -> String {
        format!(
            "postgres://{user}:{ENCODED}@localhost:{}/app?hostaddr=127.0.0.1&{query}",
            self.port
        )
    }

    fn resolve(&self, url: &str) -> Result<ConnInfo, String> {
        let postgres = Postgres {
            url: Some(Secret::new(url)),
            ..Postgres::default()
        };
        let env: Env = [("HOME", self.path("no-home"))].into_iter().collect();
        ConnInfo::resolve(&postgres, &env).map_err(|stop| {
            assert_eq!(stop.exit, Exit::Usage);
            stop.to_string()
        })
    }

    /// What both kinds of connection say: whether TLS is on, or the error.
    async fn both(&self, url: &str) -> Result<bool, String> {
        let info = self.resolve(url)?;
        let client = sql::connect(&info, "walpost:it")
            .await
            .map_err(|failure| failure.to_string());
        let replication = replication::connect(&info, "walpost:it")
            .await
            .map_err(|failure| failure.to_string());
        let (client, mut replication) = match (client, replication) {
            (Ok(client), Ok(replication)) => (client, replication),
            (Err(a), Err(b)) => {
                assert_eq!(a, b, "{url}");
                return Err(a);
            }
            (a, b) => panic!("{url}: SQL {:?}, replication {:?}", a.err(), b.err()),
        };
        let tls =
            "SELECT ssl::text FROM pg_catalog.pg_stat_ssl WHERE pid = pg_catalog.pg_backend_pid()";
        let first: String = client.query_one(tls, &[]).await.unwrap().get(0);
        let rows = replication.simple_query(tls).await.unwrap();
        assert_eq!(rows[0][0].as_deref(), Some(first.as_str()), "{url}");
        Ok(first == "true")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let stop = self.bin.join("pg_ctl").display().to_string();
        as_server(&[&stop, "-D", &self.path("data"), "-m", "immediate", "stop"]);
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

fn bin() -> PathBuf {
    if let Some(folder) = std::env::var_os("WALPOST_TEST_PG_BIN") {
        return folder.into();
    }
    let found = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().join("bin"))
        .max();
    found
        .filter(|bin| bin.join("initdb").exists())
        .unwrap_or_else(|| Path::new("").into())
}

fn shell(script: &str) {
    assert!(
        Command::new("bash")
            .args(["-c", script])
            .status()
            .unwrap()
            .success(),
        "{script}"
    );
}

/// PostgreSQL refuses to run as root.
fn as_server(line: &[&str]) {
    let mut command = Command::new("bash");
    command.args(["-c", r#"if [ $(id -u) = 0 ]; then exec setpriv --reuid postgres --regid postgres --clear-groups -- "$@"; fi; exec "$@""#, "run"]);
    let status = command
        .args(line)
        .stdout(Stdio::null())
        .stdin(Stdio::null())
        .current_dir("/")
        .status()
        .unwrap();
    assert!(status.success(), "{line:?}");
}

#[tokio::test]
async fn connections() {
    let server = Server::start().await;
    tls_modes(&server).await;
    certificates_of_the_client(&server).await;
    ways_to_log_in(&server).await;
    hosts(&server).await;
    sessions_are_pinned(&server).await;
    refusals(&server).await;
    servers_that_do_not_answer(&server).await;
}

async fn tls_modes(server: &Server) {
    let (ca, other) = (server.path("ca.crt"), server.path("other.crt"));
    let at = |user: &str, query: &str| server.url(user, query);
    let wrong_name = |query: &str| at("walpost", query).replace("@localhost", "@wrong.example");
    let second_name = |query: &str| at("walpost", query).replace("@localhost", "@second.example");
    let by_ip = |query: &str| {
        format!(
            "postgres://walpost:{ENCODED}@127.0.0.1:{}/app?{query}",
            server.port
        )
    };

    assert_eq!(
        server.both(&at("walpost", "sslmode=disable")).await,
        Ok(false)
    );
    for mode in ["prefer", "require"] {
        assert_eq!(
            server
                .both(&at("walpost", &format!("sslmode={mode}")))
                .await,
            Ok(true)
        );
        assert_eq!(
            server.both(&wrong_name(&format!("sslmode={mode}"))).await,
            Ok(true)
        );
    }
    assert_eq!(
        server.both(&at("walpost", "sslmode=allow")).await,
        Ok(false)
    );
    assert_eq!(
        server.both(&at("walpost", "channel_binding=require")).await,
        Ok(true)
    );

    let full = format!("sslmode=verify-full&sslrootcert={ca}");
    for url in [at("walpost", &full), second_name(&full), by_ip(&full)] {
        assert_eq!(server.both(&url).await, Ok(true), "{url}");
    }
    assert_eq!(
        server
            .both(&wrong_name(&format!("sslmode=verify-ca&sslrootcert={ca}")))
            .await,
        Ok(true)
    );
    let refused = |host: &str, why: &str, mode: &str, root: &str| {
        format!(
            "cannot connect to PostgreSQL: {host}:{}: the server's certificate is not accepted: {why} (sslmode={mode}, sslrootcert={root})",
            server.port
        )
    };
    let error = refused("wrong.example", "hostname mismatch", "verify-full", &ca);
    assert_eq!(server.both(&wrong_name(&full)).await, Err(error));
    for mode in ["require", "verify-ca", "verify-full"] {
        let url = at("walpost", &format!("sslmode={mode}&sslrootcert={other}"));
        let error = refused(
            "localhost",
            "self-signed certificate in certificate chain",
            mode,
            &other,
        );
        assert_eq!(server.both(&url).await, Err(error));
    }
    let error = refused(
        "localhost",
        "self-signed certificate in certificate chain",
        "verify-full",
        "",
    )
    .replace("=)", "=system)");
    assert_eq!(
        server.both(&at("walpost", "sslrootcert=system")).await,
        Err(error)
    );
    // libpq's `prefer` goes on in plain text.
    assert_eq!(
        server
            .both(&at(
                "walpost",
                &format!("sslmode=prefer&sslrootcert={other}")
            ))
            .await,
        Ok(false)
    );

    let revoked = format!(
        "sslmode=verify-full&sslrootcert={ca}&sslcrl={}",
        server.path("revoked.crl")
    );
    let error = refused("localhost", "certificate revoked", "verify-full", &ca);
    assert_eq!(server.both(&at("walpost", &revoked)).await, Err(error));
    let empty = format!(
        "sslmode=verify-full&sslrootcert={ca}&sslcrl={}",
        server.path("empty.crl")
    );
    assert_eq!(server.both(&at("walpost", &empty)).await, Ok(true));

    // What pg_hba.conf allows only with or only without TLS.
    let sql = async |url: String| {
        sql::connect(&server.resolve(&url).unwrap(), "x")
            .await
            .map(drop)
            .map_err(|f| f.to_string())
    };
    for (user, mode, good) in [
        ("plain_only", "prefer", true),
        ("plain_only", "allow", true),
        ("plain_only", "require", false),
        ("tls_only", "allow", true),
        ("tls_only", "prefer", true),
        ("tls_only", "disable", false),
    ] {
        let result = sql(at(user, &format!("sslmode={mode}"))).await;
        assert_eq!(result.is_ok(), good, "{user} {mode}: {result:?}");
    }
}

async fn certificates_of_the_client(server: &Server) {
    let url = |key: &str, password: &str| {
        let query = format!(
            "sslmode=require&sslcert={}&sslkey={}{password}",
            server.path("client.crt"),
            server.path(key)
        );
        server.url("by_certificate", &query)
    };
    assert_eq!(
        server
            .both(&url("client.key", "&sslpassword=key-secret"))
            .await,
        Ok(true)
    );
    let key = server.path("client.key");
    let wrong =
        format!("sslkey {key}: not a private key in PEM form, or sslpassword is wrong or missing");
    assert_eq!(
        server.both(&url("client.key", "&sslpassword=no")).await,
        Err(wrong.clone())
    );
    assert_eq!(server.both(&url("client.key", "")).await, Err(wrong));
    let error = server
        .both(&url("exposed.key", "&sslpassword=key-secret"))
        .await
        .unwrap_err();
    assert!(
        error.ends_with(&format!(
            "can be read by others; chmod 600 {}",
            server.path("exposed.key")
        )),
        "{error}"
    );
    let error = server.both(&url("ca.key", "")).await.unwrap_err();
    assert!(
        error.starts_with(&format!(
            "sslkey {} is not the key of sslcert",
            server.path("ca.key")
        )),
        "{error}"
    );
    let error = server
        .both(&server.url("by_certificate", "sslmode=require"))
        .await
        .unwrap_err();
    assert!(error.contains("(28000)"), "{error}");
}

async fn ways_to_log_in(server: &Server) {
    for user in ["walpost", "by_md5", "in_clear"] {
        assert_eq!(
            server.both(&server.url(user, "sslmode=disable")).await,
            Ok(false),
            "{user}"
        );
        assert_eq!(
            server.both(&server.url(user, "sslmode=require")).await,
            Ok(true),
            "{user}"
        );
    }
    let socket = |user: &str| {
        format!(
            "host={} port={} user={user} dbname=app",
            server.path(""),
            server.port
        )
    };
    assert_eq!(
        server
            .both(&format!("{} password={PASSWORD}", socket("walpost")))
            .await,
        Ok(false)
    );
    // TLS is for TCP: as in libpq, a socket doesn't need what sslmode demands.
    assert_eq!(
        server
            .both(&format!(
                "{} password={PASSWORD} sslmode=require",
                socket("walpost")
            ))
            .await,
        Ok(false)
    );
    let info = server.resolve(&socket("peerless")).unwrap();
    assert!(sql::connect(&info, "x").await.is_ok());

    // With channel binding demanded, a weaker way is refused.
    for (user, mode) in [
        ("walpost", "disable"),
        ("by_md5", "require"),
        ("in_clear", "require"),
    ] {
        let url = server.url(user, &format!("sslmode={mode}&channel_binding=require"));
        let failure = sql::connect(&server.resolve(&url).unwrap(), "x")
            .await
            .expect_err("no binding");
        assert!(
            failure
                .to_string()
                .ends_with("cannot log in: server did not use channel binding"),
            "{failure}"
        );
        assert!(
            replication::connect(&server.resolve(&url).unwrap(), "x")
                .await
                .is_err()
        );
    }
}

async fn hosts(server: &Server) {
    let dead = free_port();
    let two = |query: &str| {
        format!(
            "postgres://walpost:{ENCODED}@127.0.0.1:{dead},127.0.0.1:{}/app?{query}",
            server.port
        )
    };
    assert_eq!(server.both(&two("")).await, Ok(true));
    for attrs in ["any", "read-write", "primary", "prefer-standby"] {
        assert_eq!(
            server
                .both(&two(&format!("target_session_attrs={attrs}")))
                .await,
            Ok(true),
            "{attrs}"
        );
    }
    for attrs in ["standby", "read-only"] {
        let error = format!(
            "cannot connect to PostgreSQL: 127.0.0.1:{dead}: at 127.0.0.1: Connection refused (os error 111); \
            127.0.0.1:{}: not what target_session_attrs={attrs} asks for",
            server.port
        );
        assert_eq!(
            server
                .both(&two(&format!("target_session_attrs={attrs}")))
                .await,
            Err(error)
        );
    }
    server
        .sql("ALTER ROLE walpost SET default_transaction_read_only = on")
        .await;
    assert!(
        server
            .both(&two("target_session_attrs=read-write"))
            .await
            .is_err()
    );
    assert_eq!(
        server.both(&two("target_session_attrs=read-only")).await,
        Ok(true)
    );
    server
        .sql("ALTER ROLE walpost RESET default_transaction_read_only")
        .await;
}

async fn sessions_are_pinned(server: &Server) {
    let info = server
        .resolve(&server.url(
            "walpost",
            "options=-c%20datestyle%3DSQL%20-c%20work_mem%3D1MB",
        ))
        .unwrap();
    let client = sql::connect(&info, "walpost:slot").await.unwrap();
    let mut replication = replication::connect(&info, "walpost:slot").await.unwrap();
    for (name, value) in [
        ("application_name", "walpost:slot"),
        ("client_encoding", "UTF8"),
        ("DateStyle", "ISO, MDY"),
        ("IntervalStyle", "postgres"),
        ("TimeZone", "UTC"),
        ("extra_float_digits", "3"),
        ("bytea_output", "hex"),
        ("search_path", "pg_catalog"),
        ("work_mem", "1MB"),
    ] {
        let shown: String = client
            .query_one(&format!("SHOW {name}"), &[])
            .await
            .unwrap()
            .get(0);
        let streamed = replication
            .simple_query(&format!("SHOW {name}"))
            .await
            .unwrap();
        assert_eq!(
            (shown.as_str(), streamed[0][0].as_deref()),
            (value, Some(value)),
            "{name}"
        );
    }
    let show = async |name: &str| {
        client
            .query_one(&format!("SHOW {name}"), &[])
            .await
            .unwrap()
            .get::<_, String>(0)
    };
    assert_eq!(show("idle_in_transaction_session_timeout").await, "5s");
    assert_eq!(show("synchronous_commit").await, "on");
    server
        .sql("ALTER ROLE walpost SET synchronous_commit = remote_apply")
        .await;
    // In a task of its own, as the publisher does it.
    let connecting = tokio::spawn(async move { sql::connect(&info, "x").await });
    let client = connecting.await.unwrap().unwrap();
    let kept: String = client
        .query_one("SHOW synchronous_commit", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(kept, "remote_apply");
    server
        .sql("ALTER ROLE walpost RESET synchronous_commit")
        .await;
}

/// Exit code, or none for a passing failure, and text.
async fn refusal(info: &ConnInfo) -> (Option<Exit>, String) {
    match sql::connect(info, "x").await.expect_err("a refusal") {
        Failure::Stop(stop) => (Some(stop.exit), stop.to_string()),
        failure => (None, failure.to_string()),
    }
}

async fn refusals(server: &Server) {
    let port = server.port;
    let right = server.url("walpost", "sslmode=disable");
    let wrong_password = right.replace(ENCODED, "hunter2");
    let no_password = right.replace(&format!(":{ENCODED}"), "");
    let wrong_database = right.replace("/app", "/nowhere");
    let wrong_user = right.replace("walpost:", "nobody:");
    let closed = right.replace("/app", "/closed");
    let cases = [
        (
            &wrong_password,
            format!(
                "localhost:{port}: database app, user walpost: password authentication failed for user \"walpost\" \
                (the password is from the connection string) (28P01); check user and password in postgres.url, and pg_hba.conf"
            ),
        ),
        (
            &no_password,
            format!(
                "localhost:{port}: database app, user walpost: cannot log in: password missing; \
                no password was found in postgres.url, postgres.password_file, PGPASSWORD or a password file"
            ),
        ),
        (
            &wrong_database,
            format!(
                "localhost:{port}: database nowhere, user walpost: database \"nowhere\" does not exist (3D000); check the database in postgres.url"
            ),
        ),
        (
            &wrong_user,
            format!(
                "localhost:{port}: database app, user nobody: password authentication failed for user \"nobody\" \
                (the password is from the connection string) (28P01); check user and password in postgres.url, and pg_hba.conf"
            ),
        ),
        (
            &closed,
            format!(
                "localhost:{port}: database closed, user walpost: permission denied for database \"closed\" \
                (User does not have CONNECT privilege.) (42501); as its owner: GRANT CONNECT ON DATABASE closed TO walpost"
            ),
        ),
    ];
    for (url, text) in cases {
        assert_eq!(
            refusal(&server.resolve(url).unwrap()).await,
            (Some(Exit::Error), text)
        );
    }
    let (exit, text) = refusal(
        &server
            .resolve(&server.url("limited", "sslmode=disable"))
            .unwrap(),
    )
    .await;
    assert_eq!(exit, None);
    assert!(
        text.contains("(53300); end other connections, raise max_connections (ALTER SYSTEM"),
        "{text}"
    );

    // A role without the right to replicate logs in for SQL, and ends at the stream.
    let info = server
        .resolve(&server.url("plain_only", "sslmode=disable"))
        .unwrap();
    sql::connect(&info, "x").await.unwrap();
    match replication::connect(&info, "x")
        .await
        .map(drop)
        .expect_err("no right")
    {
        Failure::Stop(stop) => {
            assert_eq!(stop.exit, Exit::Error);
            assert!(
                stop.to_string()
                    .ends_with("(42501); as a superuser: ALTER ROLE plain_only REPLICATION"),
                "{stop}"
            );
        }
        failure => panic!("{failure}"),
    }

    // After the first login a refused one passes: the password is being changed.
    let info = server.resolve(&right).unwrap();
    assert!(info.is_first());
    sql::connect(&info, "x").await.unwrap();
    assert!(!info.is_first());
    server.sql("ALTER ROLE walpost PASSWORD 'changed'").await;
    let (exit, text) = refusal(&info).await;
    assert_eq!(exit, None);
    assert!(
        text.contains("(28P01)") && !text.contains(PASSWORD),
        "{text}"
    );
    server
        .sql(&format!("ALTER ROLE walpost PASSWORD '{PASSWORD}'"))
        .await;
    sql::connect(&info, "x").await.unwrap();
}

async fn servers_that_do_not_answer(server: &Server) {
    let dead = free_port();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().port();
    for (url, text) in [
        (
            format!("postgres://u@127.0.0.1:{dead}"),
            format!("127.0.0.1:{dead}: at 127.0.0.1: Connection refused (os error 111)"),
        ),
        (
            format!("postgres://u@127.0.0.1:{silent}?connect_timeout=1"),
            format!("127.0.0.1:{silent}: no answer within 1s (connect_timeout)"),
        ),
        (
            "postgres://u@%2Fnowhere".to_string(),
            "/nowhere/.s.PGSQL.5432: No such file or directory (os error 2)".to_string(),
        ),
    ] {
        let text = format!("cannot connect to PostgreSQL: {text}");
        assert_eq!(refusal(&server.resolve(&url).unwrap()).await, (None, text));
    }
    let (exit, text) = refusal(&server.resolve("postgres://u@nowhere.invalid").unwrap()).await;
    assert_eq!(exit, None);
    assert!(
        text.starts_with(
            "cannot connect to PostgreSQL: nowhere.invalid:5432: failed to lookup address"
        ),
        "{text}"
    );
}
