//! The files that a client of Kafka reads when it is made: values of properties, certificates. A
//! broker that refuses a certificate only closes the connection, as one that is down does; so what
//! tells that a new client could log in is that the files are others now.

use std::{fs, path::PathBuf, time::SystemTime};

use crate::config;

/// Properties that name a file which librdkafka reads when a client is made.
const READ_BY_CLIENT: [&str; 6] = [
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.crl.location",
    "ssl.key.location",
    "ssl.keystore.location",
    "sasl.kerberos.keytab",
];

/// What tells one content of a file from another; `None` while it cannot be looked at.
type Stamp = Option<(SystemTime, u64)>;

pub struct Files {
    paths: Vec<PathBuf>,
    seen: Vec<Stamp>,
}

impl Files {
    pub fn of(kafka: &config::Kafka) -> Self {
        let named = kafka
            .properties
            .iter()
            .filter(|(name, _)| READ_BY_CLIENT.contains(&name.as_str()))
            .map(|(_, path)| PathBuf::from(path));
        let paths: Vec<_> = kafka
            .property_files
            .values()
            .cloned()
            .chain(named)
            .collect();
        Files {
            seen: stamps(&paths),
            paths,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// Since the last time that this was asked.
    pub fn changed(&mut self) -> bool {
        let now = stamps(&self.paths);
        let changed = now != self.seen;
        self.seen = now;
        changed
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |path: &PathBuf| {
        let found = fs::metadata(path).ok()?;
        Some((found.modified().ok()?, found.len()))
    };
    paths.iter().map(stamp).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_written_again_is_noticed_once() {
        let path = std::env::temp_dir().join(format!("walpost-files-{}", std::process::id()));
        let mut files = Files {
            seen: vec![None],
            paths: vec![path.clone()],
        };
        assert!(!files.changed());
        fs::write(&path, "one").unwrap();
        assert!(files.changed() && !files.changed());
        fs::write(&path, "three").unwrap();
        assert!(files.changed() && !files.changed());
        fs::remove_file(&path).unwrap();
        assert!(files.changed());
    }
}
