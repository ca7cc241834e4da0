//! Brokers of the tests' own: one to stop, and one whose listeners stand behind proxies.

use std::{
    fmt::Write as _,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Condvar, LazyLock, Mutex},
    time::Duration,
};

use rustix::process::Signal;

use super::{
    batches::{self, Batches},
    free_port,
    kafka::Kafka,
    process::{Process, new_folder},
    proxy::Proxy,
    services, until,
};

/// A broker in a folder of its own.
pub struct KafkaServer {
    pub kafka: Arc<Kafka>,
    folder: PathBuf,
    controller: u16,
    process: Process,
}

impl KafkaServer {
    pub fn start() -> KafkaServer {
        KafkaServer::with_listeners(&[])
    }

    /// A second broker of this one's cluster, which can be stopped without the cluster.
    pub fn second(&self) -> KafkaServer {
        let member = "process.roles=broker\nnode.id=2\n";
        let second = KafkaServer::configured(self.controller, &[], member);
        until("the cluster has two brokers", 60, || {
            (self.kafka.count_brokers() == 2).then_some(())
        });
        second
    }

    /// One that is also reached at `localhost:port`, where these settings say who comes in: in them
    /// `@` stands for the listener's prefix, `protocol` is what the listener speaks.
    pub fn secured(protocol: &str, settings: &str) -> (KafkaServer, String) {
        let port = free_port();
        let mut server = KafkaServer::configured(free_port(), &[], "");
        server.stop();
        server.append(&format!(
            "listeners={}\nadvertised.listeners={}\nlistener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURED:{protocol}",
            format_args!(
                "PLAINTEXT://{0},CONTROLLER://127.0.0.1:{1},SECURED://localhost:{port}",
                server.kafka.brokers, server.controller
            ),
            format_args!("PLAINTEXT://{},SECURED://localhost:{port}", server.kafka.brokers),
        ));
        server.append(&settings.replace('@', "listener.name.secured."));
        server.restart();
        (server, format!("localhost:{port}"))
    }

    /// Lines of its settings, for its next start.
    fn append(&self, lines: &str) {
        let path = self.folder.join("server.properties");
        let mut settings = fs::read_to_string(&path).expect("read server.properties");
        writeln!(settings, "\n{lines}").expect("format");
        fs::write(&path, settings).expect("write server.properties");
    }

    /// One that is also reached through so many proxies.
    pub fn proxied(count: usize) -> (KafkaServer, Vec<Proxy>) {
        let ports: Vec<(u16, u16)> = (0..count).map(|_| (free_port(), free_port())).collect();
        let proxy = |(behind, front): &(u16, u16)| {
            Proxy::listening(*front, SocketAddr::from(([127, 0, 0, 1], *behind)))
        };
        let proxies = ports.iter().map(proxy).collect();
        (KafkaServer::with_listeners(&ports), proxies)
    }

    /// `listeners`: (port to listen on, port to advertise), beside the plain one.
    fn with_listeners(listeners: &[(u16, u16)]) -> KafkaServer {
        KafkaServer::configured(free_port(), listeners, "")
    }

    /// `member`: settings of one that is not its own controller.
    fn configured(controller: u16, listeners: &[(u16, u16)], member: &str) -> KafkaServer {
        let (folder, port) = (new_folder("kafka"), free_port());
        let template = services::root().join("scripts/kafka/server.properties");
        let template = fs::read_to_string(&template)
            .unwrap_or_else(|error| panic!("read {template:?}: {error}"));
        let data = folder.join("data");
        let mut settings = template
            .replace("@PORT@", &port.to_string())
            .replace("@CONTROLLER_PORT@", &controller.to_string())
            .replace("@DATA@", &data.display().to_string());
        let mut advertise = format!("PLAINTEXT://127.0.0.1:{port}");
        let mut listen = advertise.clone();
        if member.is_empty() {
            write!(listen, ",CONTROLLER://127.0.0.1:{controller}").expect("format");
        }
        let mut protocols = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned();
        for (n, (behind, front)) in listeners.iter().enumerate() {
            write!(listen, ",PROXIED{n}://127.0.0.1:{behind}").expect("format");
            write!(advertise, ",PROXIED{n}://127.0.0.1:{front}").expect("format");
            write!(protocols, ",PROXIED{n}:PLAINTEXT").expect("format");
        }
        // A later line wins. A killed broker may come back only when its last session has ended.
        write!(settings, "\nlisteners={listen}\nadvertised.listeners={advertise}\nlistener.security.protocol.map={protocols}\ninter.broker.listener.name=PLAINTEXT\n\
             broker.session.timeout.ms=2000\nbroker.heartbeat.interval.ms=500\n{member}")
            .expect("format");
        fs::write(folder.join("server.properties"), settings).expect("write server.properties");
        let format = java(&folder)
            .args([
                "kafka.tools.StorageTool",
                "format",
                "--cluster-id",
                "5L6g3nShT-eMCtK--X86sw",
                "--config",
            ])
            .arg(folder.join("server.properties"))
            .output()
            .expect("run java");
        assert!(
            format.status.success(),
            "format the storage: {}",
            String::from_utf8_lossy(&format.stdout)
        );
        let process = broker(&folder);
        let server = KafkaServer {
            kafka: Arc::new(Kafka::at(&format!("127.0.0.1:{port}"))),
            folder,
            controller,
            process,
        };
        server.wait();
        server
    }

    /// Who wrote the topic's records.
    pub fn batches(&self, topic: &str) -> Batches {
        Batches::read(&self.folder.join("data"), topic)
    }

    /// What a power cut does to a broker that is down: the last batch of the topic's partition 0 is gone.
    pub fn lose_last_batch(&self, topic: &str) {
        batches::cut_last(&self.folder.join(format!("data/{topic}-0")));
    }

    fn wait(&self) {
        until(
            format_args!(
                "the broker answers; its log is {:?}",
                self.folder.join("log")
            ),
            90,
            || self.kafka.answers().then_some(()),
        );
    }

    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// SIGTERM, and waits for the end.
    pub fn stop(&mut self) {
        self.process.signal(Signal::TERM);
        self.process
            .wait(Duration::from_secs(60))
            .expect("the broker stops within a minute");
    }

    pub fn restart(&mut self) {
        self.process = broker(&self.folder);
        self.wait();
    }

    /// Stops it in its tracks; connections stay open and nothing answers.
    pub fn freeze(&mut self) {
        self.process.signal(Signal::STOP);
    }

    pub fn thaw(&mut self) {
        self.process.signal(Signal::CONT);
    }
}

fn broker(folder: &Path) -> Process {
    let log = folder.join("log");
    Process::start(
        java(folder)
            .arg("kafka.Kafka")
            .arg(folder.join("server.properties")),
        &log,
        &log,
        "KILL",
    )
    .expect("start Kafka")
}

fn java(folder: &Path) -> Command {
    let mut java = Command::new("java");
    let logging = format!(
        "-Dlog4j2.configurationFile={}",
        services::root()
            .join("scripts/kafka/log4j2.properties")
            .display()
    );
    java.current_dir(folder)
        // Quick to start, on few cores, beside the tests.
        .args([
            "-Xms128m",
            "-Xmx384m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            &logging,
            "-cp",
        ])
        .arg(Path::new(services::setting("WALPOST_TEST_KAFKA_LIBS")).join("*"));
    java
}

/// As many tests can break their connection at the same time.
const LISTENERS: usize = 6;

/// A broker that all tests share; each has a listener of its own behind a proxy of its own.
struct Pool {
    server: KafkaServer,
    free: Mutex<Vec<Proxy>>,
    returned: Condvar,
}

static POOL: LazyLock<Pool> = LazyLock::new(|| {
    let (server, free) = KafkaServer::proxied(LISTENERS);
    Pool {
        server,
        free: Mutex::new(free),
        returned: Condvar::new(),
    }
});

/// A way to Kafka that can be broken, without harm to other tests.
pub struct Breakable {
    proxy: Option<Proxy>,
}

impl Breakable {
    pub fn take() -> Breakable {
        let free = POOL.free.lock().expect("no panic under this lock");
        let mut free = POOL
            .returned
            .wait_while(free, |free| free.is_empty())
            .expect("no panic under this lock");
        Breakable { proxy: free.pop() }
    }

    /// The cluster by its undisturbed way.
    pub fn kafka(&self) -> Arc<Kafka> {
        POOL.server.kafka.clone()
    }

    /// Who wrote the topic's records.
    pub fn batches(&self, topic: &str) -> Batches {
        POOL.server.batches(topic)
    }

    pub fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().expect("kept until dropped")
    }
}

impl Drop for Breakable {
    fn drop(&mut self) {
        if let Some(proxy) = self.proxy.take() {
            proxy.forward();
            proxy.reset();
            // Long enough for every thread of the proxy to see it, before the next test comes.
            std::thread::sleep(Duration::from_millis(100));
            POOL.free
                .lock()
                .expect("no panic under this lock")
                .push(proxy);
            POOL.returned.notify_one();
        }
    }
}
