//! The binary under test: its configuration, its commands, its running processes, its HTTP side.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use serde_json::Value;

use super::{
    free_port,
    process::{Process, new_folder},
    run::{Output, Run},
    until,
};

/// One configuration in one folder.
pub struct Walpost {
    pub folder: PathBuf,
    /// Section → key → TOML.
    settings: BTreeMap<String, BTreeMap<String, String>>,
    /// `[[outbox]]` tables, instead of section `outbox`.
    outbox: Option<String>,
    environment: BTreeMap<String, String>,
    calls: AtomicUsize,
}

impl Walpost {
    /// With an HTTP port of its own and nothing else set.
    pub fn new() -> Walpost {
        let folder = new_folder("walpost");
        let mut walpost = Walpost {
            folder,
            settings: BTreeMap::new(),
            outbox: None,
            environment: BTreeMap::new(),
            calls: AtomicUsize::new(0),
        };
        walpost.set("http.listen", format!("127.0.0.1:{}", free_port()));
        walpost
    }

    /// A second publisher with the same configuration and its own HTTP port.
    pub fn twin(&self) -> Walpost {
        let mut twin = Walpost::new();
        let http = twin.settings.remove("http").unwrap_or_default();
        twin.settings.clone_from(&self.settings);
        twin.outbox.clone_from(&self.outbox);
        twin.environment.clone_from(&self.environment);
        twin.settings.entry("http".into()).or_default().extend(http);
        twin.write();
        twin
    }

    /// Sets `section.key`, e.g. `delivery.in_flight_rows` or `kafka.properties.linger.ms`; the outbox table is section `outbox`.
    pub fn set(&mut self, path: &str, value: impl Into<Value>) -> &mut Self {
        let (section, key) = split(path);
        // JSON's strings, numbers, booleans and arrays are TOML's too.
        let text = value.into().to_string();
        self.settings
            .entry(section.into())
            .or_default()
            .insert(format!("{key:?}"), text);
        self.write();
        self
    }

    /// These tables, as TOML, instead of what section `outbox` says.
    pub fn outbox(&mut self, toml: impl Into<String>) -> &mut Self {
        self.outbox = Some(toml.into());
        self.write();
        self
    }

    pub fn unset(&mut self, path: &str) -> &mut Self {
        let (section, key) = split(path);
        self.settings
            .entry(section.into())
            .or_default()
            .remove(&format!("{key:?}"));
        self.write();
        self
    }

    /// A variable for every command from now on; nothing else of ours or of libpq's is passed on.
    pub fn environment(&mut self, name: &str, value: &str) -> &mut Self {
        self.environment.insert(name.into(), value.into());
        self
    }

    fn write(&self) {
        let mut text = String::new();
        let replaced = |section: &str| section == "outbox" && self.outbox.is_some();
        for (section, entries) in self.settings.iter().filter(|(s, _)| !replaced(s)) {
            text += &if section == "outbox" {
                "[[outbox]]\n".to_owned()
            } else {
                format!("[{section}]\n")
            };
            for (key, value) in entries {
                text += &format!("{key} = {value}\n");
            }
        }
        text.extend(self.outbox.as_deref());
        fs::write(self.file(), text).expect("write walpost.toml");
    }

    pub fn file(&self) -> PathBuf {
        self.folder.join("walpost.toml")
    }

    /// A command to its end, at most 60 s.
    #[track_caller]
    pub fn command(&self, arguments: &[&str]) -> Output {
        let mut run = self.spawn(arguments);
        let code = run.wait(60);
        Output {
            line: arguments.join(" "),
            code,
            out: run.out(),
            err: run.log(),
        }
    }

    /// `init`, which has to work.
    #[track_caller]
    pub fn init(&self) -> Output {
        self.command(&["init", "--create-table"]).expect(0, &[])
    }

    /// `run` in the background.
    pub fn start(&self) -> Run {
        self.spawn(&["run"])
    }

    /// `run`, which is expected to end by itself.
    #[track_caller]
    pub fn run_to_end(&self) -> Output {
        self.command(&["run"])
    }

    /// Any command in the background; arguments that start with `--` may come before it.
    pub fn spawn(&self, arguments: &[&str]) -> Run {
        let n = self.calls.fetch_add(1, Ordering::Relaxed);
        let mut command = Command::new(env!("CARGO_BIN_EXE_walpost"));
        let ours = |name: &str| {
            name.starts_with("WALPOST_")
                || name.starts_with("PG")
                || name.starts_with("KAFKA_")
                || name == "DATABASE_URL"
        };
        for (name, _) in std::env::vars_os().filter(|(name, _)| ours(&name.to_string_lossy())) {
            command.env_remove(name);
        }
        command
            .current_dir(&self.folder)
            .envs(&self.environment)
            .arg("--config")
            .arg(self.file())
            .args(arguments);
        let (out, log) = (
            self.folder.join(format!("{n}.out")),
            self.folder.join(format!("{n}.err")),
        );
        let process = Process::start(&mut command, &out, &log, "KILL").expect("start walpost");
        Run { process, out, log }
    }

    fn address(&self) -> String {
        let listen = &self.settings["http"]["\"listen\""];
        listen.trim_matches('"').to_owned()
    }

    /// (status, body) of a GET; `None` when nobody listens.
    pub fn get(&self, path: &str) -> Option<(u16, String)> {
        self.request("GET", path, &[], "")
    }

    /// (status, body) of a POST with these headers.
    #[track_caller]
    pub fn post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
        self.request("POST", path, headers, body)
            .expect("an answer to a POST")
    }

    /// The address as `Host`, unless the headers name one.
    fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Option<(u16, String)> {
        let address = self.address();
        let mut stream = TcpStream::connect(&address).ok()?;
        stream
            .set_read_timeout(Some(Duration::from_secs(15)))
            .expect("a timeout");
        let mut head = format!("{method} {path} HTTP/1.0\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            head += &format!("Host: {address}\r\n");
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        write!(stream, "{head}\r\n{body}").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }

    /// The status code of `/ready`.
    pub fn ready(&self) -> Option<u16> {
        Some(self.get("/ready")?.0)
    }

    #[track_caller]
    pub fn wait_ready(&self) {
        until("/ready answers 200", 60, || {
            (self.ready() == Some(200)).then_some(())
        });
    }

    /// `GET /api/status`.
    #[track_caller]
    pub fn api_status(&self) -> Value {
        let (code, body) = self.get("/api/status").expect("GET /api/status");
        assert_eq!(code, 200, "{body}");
        serde_json::from_str(&body).expect("JSON from /api/status")
    }

    /// The sum of a metric's samples whose labels contain `labels`; `None` when there is no such sample.
    #[track_caller]
    pub fn metric(&self, name: &str, labels: &str) -> Option<f64> {
        let (code, body) = self.get("/metrics").expect("GET /metrics");
        assert_eq!(code, 200, "{body}");
        let sample = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            let (series_name, its_labels) = series.split_once('{').unwrap_or((series, ""));
            (series_name == name && its_labels.contains(labels))
                .then(|| value.parse::<f64>().ok())?
        };
        body.lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(sample)
            .reduce(|a, b| a + b)
    }
}

fn split(path: &str) -> (&str, &str) {
    for section in ["kafka.properties", "kafka.property_files"] {
        if let Some(property) = path.strip_prefix(section).and_then(|p| p.strip_prefix('.')) {
            return (section, property);
        }
    }
    path.split_once('.')
        .unwrap_or_else(|| panic!("{path:?} is no section.key"))
}
