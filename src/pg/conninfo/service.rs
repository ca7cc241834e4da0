//! libpq's service file. <https://www.postgresql.org/docs/current/libpq-pgservice.html>

use std::{fs, io, path::Path};

/// The parameters of `[service]`; `None` when the file or the section isn't there.
pub fn read(file: &Path, service: &str) -> Result<Option<Vec<(String, String)>>, String> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let mut found = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            if found.is_some() {
                break;
            }
            found = (name.0 == service).then(Vec::new);
        } else if let Some(found) = &mut found {
            let (key, value) = line
                .split_once('=')
                .ok_or_else(|| format!("line {}: no `=`", number + 1))?;
            if matches!(key.trim(), "service" | "servicefile") {
                return Err(format!(
                    "line {}: a service cannot name another one",
                    number + 1
                ));
            }
            found.push((key.trim().to_string(), value.trim().to_string()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_a_section() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "# comment\n[a]\nhost=x\n\n[b]\n host = y \nport=5433\noptions=-c a=b\n[c]\nservice=a\n[d]\nhost\n";
        fs::write(&file, text).unwrap();
        let pairs = |list: &[(&str, &str)]| {
            Some(
                list.iter()
                    .map(|(k, v)| (k.to_string(), v.to_string()))
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(read(file.path(), "a"), Ok(pairs(&[("host", "x")])));
        assert_eq!(
            read(file.path(), "b"),
            Ok(pairs(&[
                ("host", "y"),
                ("port", "5433"),
                ("options", "-c a=b")
            ]))
        );
        assert_eq!(
            read(file.path(), "c"),
            Err("line 10: a service cannot name another one".into())
        );
        assert_eq!(read(file.path(), "d"), Err("line 12: no `=`".into()));
        assert_eq!(read(file.path(), "e"), Ok(None));
        assert_eq!(read(Path::new("/nowhere/service"), "a"), Ok(None));
    }
}
