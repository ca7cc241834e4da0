//! Which values are in force, and where each came from.

use super::finding::Findings;
use crate::{
    config::{Config, Env, Setting, kafka},
    error::Stop,
    pg::conninfo::ConnInfo,
};

pub fn tell(
    config: &Config,
    env: &Env,
    settings: &[Setting],
    info: &ConnInfo,
    findings: &mut Findings,
) -> Result<(), Stop> {
    for setting in settings {
        let message = format!("{} = {setting}", setting.key);
        findings.pass("config.value", &setting.key, message);
    }
    findings.pass(
        "config.default",
        "all other keys",
        "all other keys have their defaults",
    );
    for setting in info.settings(&config.postgres, env)? {
        let message = format!("connection parameter {} = {setting}", setting.key);
        findings.pass("config.connection", &setting.key, message);
    }
    for (name, warning) in kafka::unwise(&config.kafka) {
        let key = format!("kafka.properties.{name}");
        let fix = format!("leave `{name}` out");
        findings.warn("config.kafka", &key, warning, &fix);
    }
    Ok(())
}
