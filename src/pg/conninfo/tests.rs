//! What strings, files and variables come to, and who wins.

use std::{fs, os::unix::fs::PermissionsExt};

use super::*;

/// An environment whose HOME is an empty folder, so that the developer's own files don't count.
struct Case {
    home: tempfile::TempDir,
    variables: Vec<(String, String)>,
}

impl Case {
    fn new(variables: &[(&str, &str)]) -> Case {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().display().to_string();
        let own = [("HOME", path.as_str()), ("PGSYSCONFDIR", path.as_str())];
        let all = own.iter().chain(variables);
        Case {
            variables: all.map(|(n, v)| (n.to_string(), v.to_string())).collect(),
            home,
        }
    }

    fn file(&self, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = self.home.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn resolve(&self, postgres: &Postgres) -> Result<ConnInfo, String> {
        let env = self.variables.iter().cloned().collect();
        ConnInfo::resolve(postgres, &env).map_err(|stop| {
            assert_eq!(stop.exit, Exit::Usage);
            stop.to_string()
        })
    }
}

fn with_url(url: &str) -> Postgres {
    Postgres {
        url: (!url.is_empty()).then(|| Secret::new(url)),
        ..Postgres::default()
    }
}

fn resolve(url: &str, variables: &[(&str, &str)]) -> Result<ConnInfo, String> {
    Case::new(variables).resolve(&with_url(url))
}

fn good(url: &str, variables: &[(&str, &str)]) -> ConnInfo {
    resolve(url, variables).expect(url)
}

fn password(info: &ConnInfo) -> Option<(String, String)> {
    let password = info.password(&info.hosts[0]).unwrap()?;
    Some((password.text.reveal().to_string(), password.source))
}

fn shown(hosts: &[Host]) -> String {
    hosts
        .iter()
        .map(Host::to_string)
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn hosts_are_paired_with_ports_and_addresses() {
    for (url, hosts) in [
        ("", "/var/run/postgresql/.s.PGSQL.5432"),
        ("postgres:///d", "/var/run/postgresql/.s.PGSQL.5432"),
        ("port=5433", "/var/run/postgresql/.s.PGSQL.5433"),
        ("postgres://db", "db:5432"),
        ("postgres://a:1,b,c:3", "a:1 b:5432 c:3"),
        ("host=a,b port=7", "a:7 b:7"),
        (
            "host=a,,/run/x port=7",
            "a:7 /var/run/postgresql/.s.PGSQL.7 /run/x/.s.PGSQL.7",
        ),
        ("postgres://%2Frun%2Fpg:7/d", "/run/pg/.s.PGSQL.7"),
        ("postgres:///d?host=/run/pg", "/run/pg/.s.PGSQL.5432"),
        ("postgres://[::1]:7", "[::1]:7"),
        ("hostaddr=::1", "[::1]:5432"),
        ("hostaddr=10.0.0.1 host=db", "db:5432"),
    ] {
        assert_eq!(shown(&good(url, &[]).hosts), hosts, "{url}");
    }
    for (url, error) in [
        (
            "host=a,b hostaddr=10.0.0.1",
            "postgres.url: hostaddr: 1 addresses for another number of hosts",
        ),
        (
            "host=a,b port=1,2,3",
            "postgres.url: port: 3 ports for 2 hosts",
        ),
        ("port=0", "postgres.url: port: must be 1 to 65535"),
        ("port=70000", "postgres.url: port: must be 1 to 65535"),
        (
            "hostaddr=db",
            "postgres.url: hostaddr: `db` is not an IP address",
        ),
    ] {
        assert_eq!(resolve(url, &[]).unwrap_err(), error, "{url}");
    }
}

#[test]
fn precedence_is_string_then_service_then_variables_then_defaults() {
    let variables = [
        ("PGHOST", "of_env"),
        ("PGPORT", "3"),
        ("PGUSER", "u_env"),
        ("PGDATABASE", "d_env"),
        ("PGSERVICE", "s"),
    ];
    let case = Case::new(&variables);
    case.file(
        ".pg_service.conf",
        "[s]\nhost=of_service\nuser=u_service\npassword=p_service\n",
        0o644,
    );
    let info = case.resolve(&with_url("postgres://of_string")).unwrap();
    assert_eq!(shown(&info.hosts), "of_string:3");
    assert_eq!(
        (info.user.as_str(), info.database.as_str()),
        ("u_service", "d_env")
    );
    assert_eq!(password(&info).unwrap().0, "p_service");

    let info = good("postgres://", &[("PGUSER", "u_env")]);
    assert_eq!(
        (info.user.as_str(), info.database.as_str()),
        ("u_env", "u_env")
    );
    assert_eq!(info.connect_timeout, Some(Duration::from_secs(10)));
    assert_eq!(
        (info.tls.mode, info.tls.root),
        (SslMode::Prefer, Root::None)
    );
    assert_eq!(info.target_session_attrs, SessionAttrs::Any);
    assert_eq!(good("", &[]).user, whoami::username().unwrap());
}

#[test]
fn variables_fill_what_the_string_leaves_out() {
    let info = good(
        "postgres://u@h/d?connect_timeout=3",
        &[
            ("PGCONNECT_TIMEOUT", "9"),
            ("PGSSLMODE", "require"),
            ("PGTARGETSESSIONATTRS", "read-write"),
            ("PGOPTIONS", "-c geqo=off"),
            ("PGCHANNELBINDING", "require"),
            ("PGAPPNAME", "ignored: ours is walpost:<slot>"),
        ],
    );
    assert_eq!(info.connect_timeout, Some(Duration::from_secs(3)));
    assert_eq!(
        (info.tls.mode, info.target_session_attrs),
        (SslMode::Require, SessionAttrs::ReadWrite)
    );
    assert_eq!(
        (info.options.as_deref(), info.channel_binding),
        (Some("-c geqo=off"), ChannelBinding::Require)
    );
    assert_eq!(good("connect_timeout=0", &[]).connect_timeout, None);
    assert_eq!(
        resolve("", &[("PGSSLMODE", "on")]).unwrap_err(),
        "PGSSLMODE: sslmode: `on` is none of disable, allow, prefer, require, verify-ca, verify-full"
    );
    assert_eq!(
        resolve("", &[("PGCONNECT_TIMEOUT", "x")]).unwrap_err(),
        "PGCONNECT_TIMEOUT: connect_timeout: `x` is not a whole number"
    );
}

#[test]
fn what_we_dont_do_is_refused_by_name() {
    for (url, error) in [
        (
            "postgres://h?application_name=x",
            "postgres.url: connection parameter `application_name` is set by walpost itself; leave it out",
        ),
        (
            "client_encoding=LATIN1",
            "postgres.url: connection parameter `client_encoding` is set by walpost itself; leave it out",
        ),
        (
            "require_auth=scram-sha-256",
            "postgres.url: connection parameter `require_auth` is not supported; leave it out",
        ),
        (
            "postgres://h?pgbouncer=true",
            "postgres.url: unknown connection parameter `pgbouncer`",
        ),
        (
            "postgres://h?sslmod=require",
            "postgres.url: unknown connection parameter `sslmod`; did you mean `sslmode`?",
        ),
        (
            "postgres://h?target_session_attrs=master",
            "postgres.url: target_session_attrs: `master` is none of any, read-write, read-only, primary, standby, prefer-standby",
        ),
        (
            "service=none",
            "service `none` is in no service file (PGSERVICEFILE, ~/.pg_service.conf, pg_service.conf of the system)",
        ),
    ] {
        assert_eq!(resolve(url, &[]).unwrap_err(), error, "{url}");
    }
    let url = "postgres://h?sslmod=require";
    assert!(
        resolve(url, &[("DATABASE_URL", url)])
            .unwrap_err()
            .starts_with("DATABASE_URL: unknown")
    );
}

#[test]
fn the_password_is_looked_for_in_order_and_read_anew() {
    let case = Case::new(&[("PGPASSWORD", "of_env")]);
    case.file(
        ".pgpass",
        "db:5432:d:u:of_passfile\nlocalhost:*:*:*:of_socket\n",
        0o600,
    );
    let file = case.file("secret", "of_file\r\nsecond line\n", 0o600);
    let name = format!("postgres.password_file {}", file.display());
    let found = |text: &str, source: &str| Some((text.to_string(), source.to_string()));

    let mut postgres = Postgres {
        password_file: Some(file.clone()),
        ..with_url("postgres://u:of_string@db/d")
    };
    assert_eq!(
        password(&case.resolve(&postgres).unwrap()),
        found("of_string", "the connection string")
    );

    postgres.url = Some(Secret::new("postgres://u@db/d"));
    let info = case.resolve(&postgres).unwrap();
    assert_eq!(password(&info), found("of_file", &name));
    fs::write(&file, "changed").unwrap();
    assert_eq!(password(&info), found("changed", &name));
    fs::remove_file(&file).unwrap();
    let error = format!("{:#}", info.password(&info.hosts[0]).unwrap_err());
    assert!(
        error.starts_with(&format!("cannot read {name}: No such file")),
        "{error}"
    );
    assert_eq!(case.resolve(&postgres).unwrap_err(), error);

    postgres.password_file = None;
    assert_eq!(
        password(&case.resolve(&postgres).unwrap()),
        found("of_env", "PGPASSWORD")
    );

    let case = Case {
        variables: case
            .variables
            .iter()
            .filter(|(n, _)| n != "PGPASSWORD")
            .cloned()
            .collect(),
        ..case
    };
    let source = format!(
        "password file {}",
        case.home.path().join(".pgpass").display()
    );
    assert_eq!(
        password(&case.resolve(&postgres).unwrap()),
        found("of_passfile", &source)
    );
    let socket = case.resolve(&with_url("postgres://u@/d")).unwrap();
    assert_eq!(password(&socket), found("of_socket", &source));
    case.file(".pgpass", "db:5432:d:u:of_passfile\n", 0o644);
    assert_eq!(password(&case.resolve(&postgres).unwrap()), None);
    let named = case.file("named", "*:*:*:*:of_named", 0o600);
    postgres.url = Some(Secret::new(format!(
        "user=u host=db passfile={}",
        named.display()
    )));
    assert_eq!(
        password(&case.resolve(&postgres).unwrap()).unwrap().0,
        "of_named"
    );
}

#[test]
fn tls_settings() {
    let case = Case::new(&[]);
    let mode = |url: &str| {
        case.resolve(&with_url(url))
            .map(|info| (info.tls.mode, info.tls.root))
    };
    assert_eq!(
        mode("sslrootcert=system").unwrap(),
        (SslMode::VerifyFull, Root::System)
    );
    for (url, error) in [
        (
            "sslmode=verify-full",
            "postgres.url: sslmode: verify-full needs a root certificate: set sslrootcert to its file, or to system with verify-full",
        ),
        (
            "sslmode=verify-ca",
            "postgres.url: sslmode: verify-ca needs a root certificate: set sslrootcert to its file, or to system with verify-full",
        ),
        (
            "sslmode=require sslrootcert=system",
            "postgres.url: sslrootcert: system needs sslmode=verify-full: with require any of its many authorities could vouch for any name",
        ),
        (
            "sslcert=/c.pem",
            "postgres.url: sslcert: a certificate without its key: set sslkey",
        ),
        (
            "sslcrl=/c.pem",
            "postgres.url: sslcrl: revocations need a root certificate: set sslrootcert",
        ),
        (
            "hostaddr=10.0.0.1 sslmode=verify-full sslrootcert=system",
            "sslmode=verify-full needs the name of each host, not hostaddr alone",
        ),
        (
            "host=h sslmode=verify-full sslrootcert=/nowhere/root.crt",
            "cannot read sslrootcert /nowhere/root.crt: No such file or directory (os error 2)",
        ),
        (
            "host=h sslcert=/nowhere/c sslkey=/nowhere/k",
            "cannot read sslcert /nowhere/c: No such file or directory (os error 2)",
        ),
    ] {
        assert_eq!(mode(url).unwrap_err(), error, "{url}");
    }
    // Over a socket there is no TLS, and no file is needed.
    assert!(mode("sslmode=verify-full sslrootcert=/nowhere/root.crt").is_ok());

    let root = case.file(".postgresql/root.crt", "not a certificate", 0o644);
    assert_eq!(
        mode("sslmode=verify-full host=/run").unwrap(),
        (SslMode::VerifyFull, Root::File(root.clone()))
    );
    let error = format!(
        "sslrootcert {} has no certificate in PEM form",
        root.display()
    );
    assert_eq!(mode("host=h").unwrap_err(), error);
}

#[test]
fn a_dead_connection_is_noticed_after_the_receive_timeout() {
    let seconds = |s| Some(Duration::from_secs(s));
    let tcp = good("postgres://h", &[]).tcp;
    assert_eq!(
        tcp,
        Tcp {
            keepalives: true,
            idle: seconds(15),
            interval: seconds(5),
            count: Some(3),
            user_timeout: seconds(30)
        }
    );
    let tcp = good("keepalives=0 keepalives_idle=1 keepalives_interval=2 keepalives_count=0 tcp_user_timeout=500", &[]).tcp;
    let user_timeout = Some(Duration::from_millis(500));
    assert_eq!(
        tcp,
        Tcp {
            keepalives: false,
            idle: seconds(1),
            interval: seconds(2),
            count: None,
            user_timeout
        }
    );
}

#[test]
fn the_users_options_come_before_ours() {
    let info = good("options='-c datestyle=German'", &[("PGUSER", "u")]);
    assert_eq!(
        info.startup_options(),
        "-c datestyle=German -c DateStyle=ISO -c IntervalStyle=postgres -c extra_float_digits=3 -c TimeZone=UTC -c bytea_output=hex -c search_path=pg_catalog"
    );
    let parameters = info.startup_parameters();
    assert_eq!(parameters[0], ("database".into(), "u".into()));
    assert_eq!(
        parameters[1],
        ("options".into(), "-c datestyle=German".into())
    );
    assert!(parameters.contains(&("client_encoding".into(), "UTF8".into())));
}

#[test]
fn secrets_are_not_shown() {
    let case = Case::new(&[("PGPASSWORD", "hunter2")]);
    let info = case
        .resolve(&with_url("password=hunter2 sslpassword=hunter2"))
        .unwrap();
    assert!(!format!("{info:?}").contains("hunter2"));
}
