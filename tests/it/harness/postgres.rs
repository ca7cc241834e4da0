//! PostgreSQL: the shared server, and clusters of a test's own.

use std::{
    fmt::Write as _,
    fs,
    net::SocketAddr,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rustix::process::{Pid, Signal, kill_process};
use tokio_postgres::{Config, config::Host};

mod copies;

use super::{
    free_port,
    process::{Process, as_server_user, new_folder, server_user},
    services,
    sql::Sql,
    until,
};

/// A server as the tests use it: the superuser looks and writes, role `walpost` publishes.
pub struct Server {
    superuser: Config,
    publisher: Config,
}

impl Server {
    /// The one all tests share.
    pub fn shared() -> Arc<Server> {
        static SHARED: LazyLock<Arc<Server>> = LazyLock::new(|| {
            let config = |name| {
                services::setting(name)
                    .parse()
                    .unwrap_or_else(|error| panic!("{name}: {error}"))
            };
            Arc::new(Server {
                superuser: config("WALPOST_TEST_PG_SUPERUSER_URL"),
                publisher: config("DATABASE_URL"),
            })
        });
        SHARED.clone()
    }

    /// The superuser's login to a database.
    pub fn superuser(&self, database: &str) -> Config {
        self.superuser
            .clone()
            .dbname(database)
            .application_name("walpost tests")
            .to_owned()
    }

    /// The superuser in the maintenance database.
    pub fn admin(&self) -> Sql {
        Sql::new(self.superuser("postgres"))
    }

    pub fn address(&self) -> (String, u16) {
        let host = match self.publisher.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            other => panic!("DATABASE_URL names no TCP host: {other:?}"),
        };
        (
            host,
            self.publisher.get_ports().first().copied().unwrap_or(5432),
        )
    }

    pub fn publisher_name(&self) -> &str {
        self.publisher.get_user().expect("a user in DATABASE_URL")
    }

    pub fn publisher_password(&self) -> String {
        String::from_utf8_lossy(
            self.publisher
                .get_password()
                .expect("a password in DATABASE_URL"),
        )
        .into_owned()
    }

    pub fn socket_address(&self) -> SocketAddr {
        let (host, port) = self.address();
        format!("{host}:{port}")
            .parse()
            .expect("PostgreSQL's address in numbers")
    }

    /// What `postgres.url` says for the publisher in this database.
    pub fn url(&self, database: &str) -> String {
        let (host, port) = self.address();
        self.url_at(&host, port, database)
    }

    /// The same, by another address.
    pub fn url_at(&self, host: &str, port: u16, database: &str) -> String {
        url(
            self.publisher_name(),
            &self.publisher_password(),
            host,
            port,
            database,
        )
    }
}

pub fn url(user: &str, password: &str, host: &str, port: u16, database: &str) -> String {
    let encode = |text| utf8_percent_encode(text, NON_ALPHANUMERIC);
    format!(
        "postgres://{}:{}@{host}:{port}/{}",
        encode(user),
        encode(password),
        encode(database)
    )
}

/// A throw-away cluster, for tests that need settings of their own or that stop the server.
pub struct Cluster {
    pub server: Arc<Server>,
    data: PathBuf,
    log: PathBuf,
    process: Process,
}

const PASSWORD: &str = "cluster-secret-4711";

/// Enough for any test; durability is not what is tested here.
const SETTINGS: &str = "wal_level = logical\nfsync = off\nfull_page_writes = off\nmax_wal_senders = 20\n\
    max_replication_slots = 20\nmax_prepared_transactions = 20\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = ''\n\
    max_wal_size = '4GB'\nlog_replication_commands = on\n";

impl Cluster {
    /// A cluster with these lines at the end of postgresql.conf.
    pub fn start(settings: &str) -> Cluster {
        Cluster::prepared(settings, |_| ())
    }

    /// `prepare` may change the data folder before the server starts.
    pub fn prepared(settings: &str, prepare: impl FnOnce(&Path)) -> Cluster {
        let port = free_port();
        let (data, log) = initialised(&format!("port = {port}\n{settings}\n"));
        prepare(&data);

        let server = Arc::new(server_at(port));
        let cluster = Cluster {
            process: postmaster(&data, &log),
            server,
            data,
            log,
        };
        cluster.wait();
        cluster.server.admin().run(&format!(
            "CREATE ROLE walpost LOGIN REPLICATION PASSWORD '{PASSWORD}'"
        ));
        cluster
    }

    /// Who may log in how from now on, as in pg_hba.conf.
    pub fn access(&self, lines: &str) {
        fs::write(self.data.join("pg_hba.conf"), lines).expect("write pg_hba.conf");
        self.server.admin().run("SELECT pg_reload_conf()");
    }

    /// Sets it for the whole server.
    pub fn set(&self, name: &str, value: &str) {
        let admin = self.server.admin();
        admin.run(&format!("ALTER SYSTEM SET {name} = {value}"));
        admin.run("SELECT pg_reload_conf()");
    }

    /// A file of the server's, for its eyes only. It reads it when it is told to, by `reload`.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        put(&self.data, name, bytes);
    }

    pub fn reload(&self) {
        self.server.admin().run("SELECT pg_reload_conf()");
    }

    fn wait(&self) {
        let admin = self.server.admin();
        until(
            format_args!("PostgreSQL answers; its log is {:?}", self.log),
            60,
            || admin.try_rows("SELECT 1").ok(),
        );
    }

    /// Stops with SIGINT (fast shutdown); how long it took.
    pub fn stop(&mut self) -> Duration {
        let began = Instant::now();
        self.process.signal(Signal::INT);
        self.process
            .wait(Duration::from_secs(60))
            .expect("PostgreSQL stops within a minute");
        began.elapsed()
    }

    /// As after a crash: no shutdown checkpoint.
    pub fn crash(&mut self) {
        self.process.signal(Signal::QUIT);
        self.process
            .wait(Duration::from_secs(60))
            .expect("PostgreSQL stops within a minute");
    }

    /// SIGKILL for the server and all its processes.
    pub fn kill(&mut self) {
        // Frozen, it neither starts new ones nor lets a number go to somebody else.
        self.process.signal(Signal::STOP);
        let children = self.process.children();
        self.process.kill();
        signal(&children, Signal::KILL);
    }

    /// SIGSTOP for the server and all its processes.
    pub fn freeze(&mut self) {
        self.process.signal(Signal::STOP);
        signal(&self.process.children(), Signal::STOP);
    }

    pub fn thaw(&mut self) {
        signal(&self.process.children(), Signal::CONT);
        self.process.signal(Signal::CONT);
    }

    /// A signal for one of the server's processes, if it still is one.
    pub fn signal(&mut self, pid: i64, kind: Signal) {
        let mut children = self.process.children();
        children.retain(|child| i64::from(child.as_raw_nonzero().get()) == pid);
        signal(&children, kind);
    }

    pub fn restart(&mut self) {
        self.process = postmaster(&self.data, &self.log);
        let admin = self.server.admin();
        until(
            format_args!("PostgreSQL answers; its log is {:?}", self.log),
            60,
            || {
                // After a kill the memory of the old one may be in use for a moment.
                if self.process.ended().is_some() {
                    self.process = postmaster(&self.data, &self.log);
                }
                admin.try_rows("SELECT 1").ok()
            },
        );
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.process.signal(Signal::QUIT);
        self.process.wait(Duration::from_secs(20));
    }
}

/// A folder of the server's user; where data and log go in it.
fn place(name: &str) -> (PathBuf, PathBuf) {
    let folder = new_folder(name);
    if let Some((uid, gid)) = server_user() {
        chown(&folder, Some(uid), Some(gid)).expect("give the folder to the server's user");
    }
    (folder.join("data"), folder.join("log"))
}

/// A new cluster that has never run.
fn initialised(settings: &str) -> (PathBuf, PathBuf) {
    let (data, log) = place("postgres");
    // `postgres` as superuser by trust: the tests come by TCP, the publisher has to log in.
    let arguments = [
        "-U",
        "postgres",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C",
        "--no-sync",
        "-D",
    ];
    run(as_server_user(&bin("initdb")).args(arguments).arg(&data));
    configure(&data, &format!("{SETTINGS}{settings}"));
    let access = "local all postgres trust\nhost all postgres 127.0.0.1/32 trust\n\
                  host all all 127.0.0.1/32 scram-sha-256\nhost replication all 127.0.0.1/32 scram-sha-256\n";
    fs::write(data.join("pg_hba.conf"), access).expect("write pg_hba.conf");
    (data, log)
}

/// A file in the data folder, for the server's eyes only.
pub fn put(data: &Path, name: &str, bytes: &[u8]) {
    let path = data.join(name);
    fs::write(&path, bytes).expect("write a file of the server's");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
    if let Some((uid, gid)) = server_user() {
        chown(&path, Some(uid), Some(gid)).expect("chown");
    }
}

/// Puts lines at the end of postgresql.conf, where they win.
fn configure(data: &Path, lines: &str) {
    let conf = data.join("postgresql.conf");
    let mut text = fs::read_to_string(&conf).expect("read postgresql.conf");
    write!(text, "\n{lines}\n").expect("format");
    fs::write(&conf, text).expect("write postgresql.conf");
}

fn signal(processes: &[Pid], kind: Signal) {
    for pid in processes {
        // It may have ended by itself.
        let _ = kill_process(*pid, kind);
    }
}

fn server_at(port: u16) -> Server {
    let login = |user: &str| {
        Config::new()
            .host("127.0.0.1")
            .port(port)
            .user(user)
            .connect_timeout(Duration::from_secs(5))
            .to_owned()
    };
    Server {
        superuser: login("postgres"),
        publisher: login("walpost").password(PASSWORD).to_owned(),
    }
}

fn postmaster(data: &Path, log: &Path) -> Process {
    Process::start(
        as_server_user(&bin("postgres")).arg("-D").arg(data),
        log,
        log,
        "QUIT",
    )
    .expect("start PostgreSQL")
}

fn bin(program: &str) -> PathBuf {
    Path::new(services::setting("WALPOST_TEST_PG_BIN")).join(program)
}

fn run(command: &mut Command) {
    let output = command
        .current_dir("/")
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
