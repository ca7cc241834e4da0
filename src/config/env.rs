//! A snapshot of the environment, so that nothing else reads the process's own and tests need not
//! touch it.

use std::{collections::BTreeMap, ffi::OsString};

use crate::{
    error::{Exit, Stop},
    stop,
};

/// Variables by name. A value that isn't UTF-8 is kept as unreadable and is an error only for who
/// asks for it.
#[derive(Clone, Default)]
pub struct Env(BTreeMap<String, Option<String>>);

impl Env {
    /// The environment of this process.
    pub fn of_process() -> Env {
        Env(std::env::vars_os()
            .map(|(name, value)| (lossy(name), value.into_string().ok()))
            .collect())
    }

    /// The value; `None` when it is not set.
    pub fn get(&self, name: &str) -> Result<Option<&str>, Stop> {
        match self.0.get(name) {
            None => Ok(None),
            Some(Some(value)) => Ok(Some(value)),
            Some(None) => Err(stop!(Exit::Usage, "{name}: the value is not UTF-8")),
        }
    }

    /// The value; `None` when it is not set or empty.
    pub fn filled(&self, name: &str) -> Result<Option<&str>, Stop> {
        Ok(self.get(name)?.filter(|value| !value.is_empty()))
    }

    /// Names, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

fn lossy(name: OsString) -> String {
    name.to_string_lossy().into_owned()
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Env {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Env {
        Env(variables
            .into_iter()
            .map(|(name, value)| (name.into(), Some(value.into())))
            .collect())
    }
}

impl std::fmt::Debug for Env {
    /// Names only: values may be secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn a_value_that_is_not_utf8_is_an_error_for_who_asks() {
        let value = OsString::from_vec(vec![0xff, b'x']);
        let env = Env(BTreeMap::from([(
            "PGUSER".to_string(),
            value.into_string().ok(),
        )]));
        assert_eq!(
            env.get("PGUSER").unwrap_err().to_string(),
            "PGUSER: the value is not UTF-8"
        );
        assert_eq!(env.get("PGHOST").unwrap(), None);
    }
}
