//! Where the shared servers are: the environment, else what `scripts/services up` wrote.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

/// The value of a setting of the test services; a panic that says what to do when there is none.
pub fn setting(name: &str) -> &'static str {
    find(name).unwrap_or_else(|| panic!("{name} is set neither in the environment nor in target/services/env: run scripts/services up"))
}

pub fn find(name: &str) -> Option<&'static str> {
    let given = ENVIRONMENT.get(name);
    given.or_else(|| SETTINGS.get(name)).map(String::as_str)
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

const NAMES: [&str; 6] = [
    "DATABASE_URL",
    "KAFKA_BROKERS",
    "KAFKA_SASL_BROKERS",
    "WALPOST_TEST_PG_SUPERUSER_URL",
    "WALPOST_TEST_PG_BIN",
    "WALPOST_TEST_KAFKA_LIBS",
];

static ENVIRONMENT: LazyLock<HashMap<String, String>> = LazyLock::new(|| {
    let given = |name: &&str| Some(((*name).to_owned(), std::env::var(name).ok()?));
    NAMES.iter().filter_map(given).collect()
});

/// What the environment leaves out.
static SETTINGS: LazyLock<HashMap<String, String>> = LazyLock::new(|| {
    // It changes nothing when all is up.
    let up = Command::new(root().join("scripts/services"))
        .arg("up")
        .output()
        .expect("run scripts/services up");
    assert!(
        up.status.success(),
        "scripts/services up: {}",
        String::from_utf8_lossy(&up.stderr)
    );
    read(&root().join("target/services/env"))
});

/// Lines `NAME=value` or `export NAME='value'`.
fn read(file: &PathBuf) -> HashMap<String, String> {
    let text = fs::read_to_string(file).expect("read target/services/env");
    let entry = |line: &str| {
        let (name, value) = line.trim().trim_start_matches("export ").split_once('=')?;
        Some((name.to_owned(), value.trim_matches(['\'', '"']).to_owned()))
    };
    text.lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .filter_map(entry)
        .collect()
}
