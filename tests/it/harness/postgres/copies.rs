//! Clusters that come of other clusters: standbys, restored backups, upgraded ones.

use super::*;

/// A copy of a cluster's files, without its slots.
pub struct Backup(PathBuf);

impl Cluster {
    /// A standby in recovery, of this cluster as it is now; this one is stopped and started for it.
    pub fn standby(&mut self) -> Cluster {
        let Backup(data) = self.backup();
        let port = free_port();
        run(as_server_user(Path::new("touch")).arg(data.join("standby.signal")));
        let (host, primary) = self.server.address();
        configure(
            &data,
            &format!(
                "port = {port}\nhot_standby_feedback = on\nprimary_conninfo = 'host={host} port={primary} user=walpost \
                 password={PASSWORD} application_name=real_standby'"
            ),
        );
        let log = data.with_file_name("log");
        let cluster = Cluster {
            server: Arc::new(server_at(port)),
            process: postmaster(&data, &log),
            data,
            log,
        };
        cluster.wait();
        cluster
    }

    /// Takes the address of a server that is no more, and becomes what it was.
    pub fn succeed(&mut self, gone: &Cluster) {
        self.stop();
        let (_, port) = gone.server.address();
        configure(&self.data, &format!("port = {port}"));
        self.server = gone.server.clone();
        self.restart();
        self.server.admin().run("SELECT pg_promote()");
    }

    /// As pg_basebackup makes one: slots belong to one server. This one is stopped and started for
    /// it.
    pub fn backup(&mut self) -> Backup {
        self.stop();
        let (data, _) = place("copy");
        run(as_server_user(Path::new("cp"))
            .arg("-a")
            .arg(&self.data)
            .arg(&data));
        run(as_server_user(Path::new("sh"))
            .args(["-c", r#"rm -rf "$1"/pg_replslot/*"#, "sh"])
            .arg(&data));
        self.restart();
        Backup(data)
    }

    /// What was written since the backup is gone.
    pub fn restore(&mut self, backup: Backup) {
        self.crash();
        self.data = backup.0;
        self.restart();
    }

    /// By pg_upgrade to a new cluster, of the same version for want of another one's programs;
    /// `false` where the program isn't installed.
    pub fn upgrade(&mut self) -> bool {
        if !bin("pg_upgrade").exists() {
            eprintln!("there is no pg_upgrade beside this PostgreSQL: left out");
            return false;
        }
        let (_, port) = self.server.address();
        let (data, log) = initialised(&format!("port = {port}\n"));
        self.stop();
        let programs = Path::new(services::setting("WALPOST_TEST_PG_BIN"));
        let port = port.to_string();
        let output = as_server_user(&bin("pg_upgrade"))
            .current_dir(data.parent().expect("a folder"))
            .arg("-b")
            .arg(programs)
            .arg("-B")
            .arg(programs)
            .arg("-d")
            .arg(&self.data)
            .arg("-D")
            .arg(&data)
            .args(["-U", "postgres", "-p", &port, "-P", &port, "-N"])
            .output()
            .expect("run pg_upgrade");
        assert!(
            output.status.success(),
            "pg_upgrade: {}",
            String::from_utf8_lossy(&output.stdout)
        );
        (self.data, self.log) = (data, log);
        self.restart();
        true
    }
}
