//! What the server says went wrong, or only warns of: the fields of ErrorResponse and NoticeResponse.
//! <https://www.postgresql.org/docs/current/protocol-error-fields.html>

use std::fmt;

use tokio_postgres::error::SqlState;

use super::bytes::{Malformed, Reader};

/// Told apart by `code`, never by text: texts differ by version and language.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError {
    /// Never translated: ERROR, FATAL, PANIC, WARNING, NOTICE, …
    pub severity: String,
    pub code: SqlState,
    pub message: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
    /// The C function that raised it, never translated.
    pub routine: Option<String>,
}

impl ServerError {
    /// The code of the server's error that an error comes from.
    pub fn code_of(error: &anyhow::Error) -> Option<SqlState> {
        let mut causes = error.chain();
        causes.find_map(|cause| Some(cause.downcast_ref::<ServerError>()?.code.clone()))
    }

    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new("ErrorResponse", body);
        let mut error = ServerError {
            severity: String::new(),
            code: SqlState::INTERNAL_ERROR,
            message: String::new(),
            detail: None,
            hint: None,
            routine: None,
        };
        loop {
            let field = r.u8()?;
            if field == 0 {
                break;
            }
            // A server that isn't set up yet speaks in its own encoding.
            let text = String::from_utf8_lossy(r.bytes_to_zero()?).into_owned();
            match field {
                b'V' => error.severity = text,
                b'S' if error.severity.is_empty() => error.severity = text,
                b'C' => error.code = SqlState::from_code(&text),
                b'M' => error.message = text,
                b'D' => error.detail = Some(text),
                b'H' => error.hint = Some(text),
                b'R' => error.routine = Some(text),
                _ => {}
            }
        }
        r.finish()?;
        Ok(error)
    }
}

impl ServerError {
    /// The server failed at what it read, not at its surroundings: data exceptions, limits of
    /// values, internal errors. The same comes again with each attempt.
    pub fn is_of_content(&self) -> bool {
        let class = self.code.code().get(..2);
        matches!(class, Some("22" | "54" | "XX"))
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code.code())?;
        self.detail
            .iter()
            .try_for_each(|detail| write!(f, ": {detail}"))
    }
}

impl std::error::Error for ServerError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_and_every_prefix_is_an_error() {
        let body = b"SWARNUNG\0VWARNING\0C42704\0Mgone\0Dall of it\0RLoadPublications\0Zx\0\0";
        let error = ServerError::parse(body).unwrap();
        assert_eq!(
            (error.severity.as_str(), error.code.code()),
            ("WARNING", "42704")
        );
        assert_eq!(error.routine.as_deref(), Some("LoadPublications"));
        assert_eq!(error.to_string(), "gone (42704): all of it");
        for end in 0..body.len() {
            assert!(ServerError::parse(&body[..end]).is_err(), "{end}");
        }
    }
}
