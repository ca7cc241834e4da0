//! Plain SQL as the application or the operator would send it; answers as text.

use std::sync::{Arc, Mutex};

use tokio_postgres::{Client, Config, Error, NoTls, SimpleQueryMessage};

use super::{block_on, runtime};

/// One session, opened again when the server went away.
pub struct Sql {
    config: Config,
    session: Mutex<Option<Arc<Client>>>,
}

pub async fn connect(config: &Config) -> Result<Client, Error> {
    let (client, connection) = config.connect(NoTls).await?;
    // Its error is the client's too.
    runtime().spawn(async move {
        let _ = connection.await;
    });
    Ok(client)
}

impl Sql {
    /// Connects at the first statement.
    pub fn new(config: Config) -> Sql {
        Sql {
            config,
            session: Mutex::new(None),
        }
    }

    fn client(&self) -> Result<Arc<Client>, Error> {
        let mut session = self.session.lock().expect("no panic under this lock");
        match &*session {
            Some(client) if !client.is_closed() => Ok(client.clone()),
            _ => Ok(session
                .insert(Arc::new(block_on(connect(&self.config))?))
                .clone()),
        }
    }

    pub fn try_rows(&self, statements: &str) -> Result<Vec<Vec<Option<String>>>, Error> {
        let client = self.client()?;
        let messages = block_on(client.simple_query(statements))?;
        let row = |message| match message {
            SimpleQueryMessage::Row(row) => Some(
                (0..row.len())
                    .map(|i| row.get(i).map(str::to_owned))
                    .collect(),
            ),
            _ => None,
        };
        Ok(messages.into_iter().filter_map(row).collect())
    }

    /// The rows of all the statements.
    #[track_caller]
    pub fn rows(&self, statements: &str) -> Vec<Vec<Option<String>>> {
        self.try_rows(statements)
            .unwrap_or_else(|error| panic!("{}: {statements}", explain(&error)))
    }

    #[track_caller]
    pub fn run(&self, statements: &str) {
        self.rows(statements);
    }

    /// The first column.
    #[track_caller]
    pub fn column(&self, statements: &str) -> Vec<String> {
        self.rows(statements)
            .into_iter()
            .map(|row| row.into_iter().next().flatten().unwrap_or_default())
            .collect()
    }

    /// The first column of the first row; `None` for NULL and for no row.
    #[track_caller]
    pub fn value(&self, statements: &str) -> Option<String> {
        self.rows(statements)
            .into_iter()
            .next()?
            .into_iter()
            .next()?
    }

    /// `value`, as a number.
    #[track_caller]
    pub fn number(&self, statements: &str) -> i64 {
        self.value(statements)
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(|| panic!("no number: {statements}"))
    }

    /// One row with typed columns.
    #[track_caller]
    pub fn typed(&self, statement: &str) -> Vec<tokio_postgres::Row> {
        self.try_typed(statement)
            .unwrap_or_else(|error| panic!("{}: {statement}", explain(&error)))
    }

    pub fn try_typed(&self, statement: &str) -> Result<Vec<tokio_postgres::Row>, Error> {
        block_on(self.client()?.query(statement, &[]))
    }
}

/// What the server said, which the driver's own text leaves out.
pub fn explain(error: &Error) -> String {
    error
        .as_db_error()
        .map_or_else(|| error.to_string(), ToString::to_string)
}

/// A literal, or NULL.
pub fn quote(text: Option<&str>) -> String {
    text.map_or_else(
        || "NULL".to_owned(),
        |text| format!("'{}'", text.replace('\'', "''")),
    )
}

/// A bytea literal.
pub fn hex(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("'\\x{digits}'::bytea")
}
