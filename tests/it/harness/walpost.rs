//! The binary under test: its configuration, its commands, its running processes, its HTTP side.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use rustix::process::Signal;
use serde_json::Value;

use super::{
    free_port,
    process::{Process, new_folder},
    until,
};

/// One configuration in one folder.
pub struct Walpost {
    pub folder: PathBuf,
    /// Section → key → TOML.
    settings: BTreeMap<String, BTreeMap<String, String>>,
    environment: BTreeMap<String, String>,
    calls: AtomicUsize,
}

/// What a command printed and how it ended.
#[derive(Debug)]
pub struct Output {
    pub line: String,
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Walpost {
    /// With an HTTP port of its own and nothing else set.
    pub fn new() -> Walpost {
        let folder = new_folder("walpost");
        let mut walpost = Walpost {
            folder,
            settings: BTreeMap::new(),
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
        for (section, entries) in &self.settings {
            text += &if section == "outbox" {
                "[[outbox]]\n".to_owned()
            } else {
                format!("[{section}]\n")
            };
            for (key, value) in entries {
                text += &format!("{key} = {value}\n");
            }
        }
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
        let address = self.address();
        let mut stream = TcpStream::connect(&address).ok()?;
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .expect("a timeout");
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").ok()?;
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
        until("/ready answers 200", 20, || {
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
    match path.strip_prefix("kafka.properties.") {
        Some(property) => ("kafka.properties", property),
        None => path
            .split_once('.')
            .unwrap_or_else(|| panic!("{path:?} is no section.key")),
    }
}

impl Output {
    /// This exit code, and each of the words in what was printed, in any case; `a|b` is either.
    #[track_caller]
    pub fn expect(self, code: i32, words: &[&str]) -> Output {
        let text = format!("{}{}", self.out, self.err);
        assert_eq!(
            self.code,
            Some(code),
            "exit code of `walpost {}`, which said:\n{text}",
            self.line
        );
        for word in words {
            assert!(
                says(&text, word),
                "`walpost {}` doesn't say {word:?}:\n{text}",
                self.line
            );
        }
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| {
            panic!(
                "`walpost {}` printed no JSON: {error}: {:?}",
                self.line, self.out
            )
        })
    }
}

fn says(text: &str, words: &str) -> bool {
    let text = text.to_lowercase();
    words
        .split('|')
        .any(|word| text.contains(&word.to_lowercase()))
}

/// One process of the binary; killed when dropped.
pub struct Run {
    process: Process,
    out: PathBuf,
    log: PathBuf,
}

fn read(file: &Path) -> String {
    String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned()
}

impl Run {
    pub fn out(&self) -> String {
        read(&self.out)
    }

    /// Standard error, where the log goes.
    pub fn log(&self) -> String {
        read(&self.log)
    }

    pub fn says(&self, words: &str) -> bool {
        says(&self.log(), words)
    }

    #[track_caller]
    pub fn wait_says(&self, words: &str, seconds: u64) {
        until(format_args!("the log says {words:?}"), seconds, || {
            self.says(words).then_some(())
        });
    }

    pub fn alive(&mut self) -> bool {
        self.process.ended().is_none()
    }

    #[track_caller]
    pub fn assert_alive(&mut self) {
        assert!(
            self.alive(),
            "walpost ended: {:?}\n{}",
            self.process.ended(),
            self.log()
        );
    }

    /// The exit code; `None` when a signal ended it.
    #[track_caller]
    pub fn wait(&mut self, seconds: u64) -> Option<i32> {
        let status = self.process.wait(Duration::from_secs(seconds));
        status
            .unwrap_or_else(|| {
                panic!(
                    "walpost did not end within {seconds} s; it said:\n{}",
                    self.log()
                )
            })
            .code()
    }

    /// It ends by itself with this code and has said the words.
    #[track_caller]
    pub fn expect_end(&mut self, code: i32, words: &[&str], seconds: u64) {
        let ended = self.wait(seconds);
        Output {
            line: "run".into(),
            code: ended,
            out: self.out(),
            err: self.log(),
        }
        .expect(code, words);
    }

    /// SIGTERM; it has to end with this code.
    #[track_caller]
    pub fn stop(&mut self, code: i32) {
        self.assert_alive();
        self.process.signal(Signal::TERM);
        self.expect_end(code, &[], 30);
    }

    pub fn signal(&mut self, signal: Signal) {
        self.process.signal(signal);
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// The most memory it ever had resident, in bytes, as the kernel counts it.
    pub fn peak_memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.pid()))
            .expect("the process's status");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .expect("VmHWM");
        line.trim()
            .trim_end_matches(" kB")
            .parse::<u64>()
            .expect("a number of kB")
            << 10
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!(
                "--- the end of {:?}\n{}",
                self.log,
                lines[lines.len().saturating_sub(30)..].join("\n")
            );
        }
    }
}
