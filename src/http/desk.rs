//! A connection for what operators ask over HTTP: of its own, so that a publisher that stalls can
//! be operated too. Opened when needed, one at a time, closed when it was idle for a while.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    task::AbortHandle,
    time::sleep,
};
use tokio_postgres::Client;

use crate::pg::{
    conninfo::ConnInfo,
    letters::{Counted, count, prepare, trouble},
    setup::explain,
    sql,
};

/// An idle connection is kept for so long.
const IDLE: Duration = Duration::from_secs(30);

/// A statement that takes longer is ended by the server.
const STATEMENT_TIMEOUT: &str = "SET statement_timeout = '9s'";

pub struct Desk {
    info: ConnInfo,
    pub slot: String,
    /// Tables whose letters hold their keys.
    holding: Vec<String>,
    kept: Arc<Mutex<Option<Kept>>>,
}

struct Kept {
    client: Client,
    /// Closes it when nobody takes it before.
    closing: AbortHandle,
}

/// The connection, for one request. Unless it is given back it is closed: a request that was given
/// up leaves it in the middle of something.
pub struct Session {
    pub client: Client,
    place: OwnedMutexGuard<Option<Kept>>,
    kept: Arc<Mutex<Option<Kept>>>,
}

impl Desk {
    pub fn new(info: ConnInfo, slot: String, holding: Vec<String>) -> Desk {
        Desk {
            info,
            slot,
            holding,
            kept: Arc::default(),
        }
    }

    /// Waits for its turn. The caller limits the time.
    pub async fn session(&self) -> anyhow::Result<Session> {
        let mut place = self.kept.clone().lock_owned().await;
        let kept = place.take().map(|kept| {
            kept.closing.abort();
            kept.client
        });
        let client = match kept {
            Some(client) if !client.is_closed() => client,
            _ => self.open().await?,
        };
        Ok(Session {
            client,
            place,
            kept: self.kept.clone(),
        })
    }

    async fn open(&self) -> anyhow::Result<Client> {
        let client = sql::connect(&self.info, "walpost:http").await?;
        prepare(&client, &self.info, &self.slot).await?;
        let limited = client.batch_execute(STATEMENT_TIMEOUT).await;
        limited.map_err(explain)?;
        Ok(client)
    }

    /// The slot's letters by status; `None` without the right to look.
    pub async fn count(&self) -> anyhow::Result<Option<Counted>> {
        let session = self.session().await?;
        let counted = count(&session.client, &self.slot, &self.holding).await;
        let counted = counted.map_err(|error| self.trouble(error))?;
        session.give_back();
        Ok(counted)
    }

    pub fn trouble(&self, error: tokio_postgres::Error) -> anyhow::Error {
        trouble(error, &self.info)
    }
}

impl Session {
    pub fn give_back(self) {
        let Session {
            client,
            mut place,
            kept,
        } = self;
        let closing = tokio::spawn(async move {
            sleep(IDLE).await;
            kept.lock().await.take();
        })
        .abort_handle();
        *place = Some(Kept { client, closing });
    }
}
