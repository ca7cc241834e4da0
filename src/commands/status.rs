//! `walpost status`: what the server says, and what the publisher says if one answers.

use std::{
    io::{self, IsTerminal, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use anyhow::Context;
use bytesize::ByteSize;
use comfy_table::{Table, presets};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, lookup_host},
    time::{sleep, timeout},
};
use tokio_postgres::Client;

use crate::{
    cli,
    config::{Config, Env},
    error::{Exit, Stop},
    pg::{
        conninfo::ConnInfo,
        letters::{self, Sizes, count},
        quote::ident,
        schema,
        setup::{self, explain},
        slot::{Names, SlotFacts},
        sql,
        verdict::{unmoved, verdict},
    },
    state::LetterCounts,
    status::{PublisherPart, RoleName, StatusObject, object},
};

/// Between two looks of `--watch`.
const WATCH_EVERY: Duration = Duration::from_secs(2);

/// A publisher that has not answered by then counts as none.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest answer that is read from whatever listens at `http.listen`.
const LONGEST_ANSWER: u64 = 1 << 20;

pub async fn status(config: &Config, env: &Env, options: &cli::Status) -> anyhow::Result<Exit> {
    let names = Names::of(config)?;
    let conninfo = ConnInfo::resolve(&config.postgres, env)?;
    let client = sql::connect(&conninfo, "walpost:status").await?;
    loop {
        let seen = look(&client, &names, &conninfo, config).await?;
        print(&seen, options).context("write to stdout")?;
        match judge(&seen.facts, &names) {
            Ok(()) if options.watch => {}
            Err(stop) if options.watch => tracing::warn!("{stop}"),
            judged => return Ok(judged.map(|()| Exit::Done)?),
        }
        sleep(WATCH_EVERY).await;
    }
}

/// What is shown.
struct Seen {
    facts: SlotFacts,
    object: StatusObject,
    /// Of the tables of letters; `None` where there are none.
    sizes: Option<Sizes>,
}

async fn look(
    client: &Client,
    names: &Names,
    info: &ConnInfo,
    config: &Config,
) -> anyhow::Result<Seen> {
    let facts = setup::look(client, names, &info.user).await?;
    let (mut letters, mut sizes) = (None, None);
    if let Some(version) = facts.schema_version {
        schema::check(version, &facts.database)?;
        letters = count(client, &names.slot, &letters::holding(config))
            .await
            .map_err(explain)?;
        sizes = Some(letters::sizes(client).await.map_err(explain)?);
        if letters.is_none() {
            tracing::warn!(
                "role {role} may not count the dead letters; their owner runs: GRANT SELECT ON walpost.dead_letter TO {role}",
                role = ident(&info.user)
            );
        }
    }
    let publisher = publisher(&config.http.listen, names, &facts).await;
    let object = object(names, Some(&facts), letters, publisher.as_ref());
    Ok(Seen {
        facts,
        object,
        sizes,
    })
}

/// What the publisher of this slot says at `http.listen`; `None` when none answers.
pub(super) async fn publisher(
    listen: &str,
    names: &Names,
    facts: &SlotFacts,
) -> Option<PublisherPart> {
    let answer = timeout(ASK_TIMEOUT, ask(listen)).await.ok()?;
    let answer = answer
        .inspect_err(|error| tracing::debug!("no publisher answers at http.listen: {error:#}"));
    PublisherPart::from_answer(answer.ok()?, names, facts)
}

/// Ends as `run` would: with 4 when the operator must act on slot or publication.
fn judge(facts: &SlotFacts, names: &Names) -> Result<(), Stop> {
    if facts.server.in_recovery {
        tracing::warn!(
            "the server is a standby: its slot and bookkeeping are the primary's, some time ago"
        );
        return Ok(());
    }
    let warnings = verdict(facts, names)?;
    warnings
        .iter()
        .for_each(|warning| tracing::warn!("{warning}"));
    // A publisher looks at this when it takes over, and moves the slot afterwards.
    match facts.holder {
        None => unmoved(facts, names),
        Some(_) => Ok(()),
    }
}

/// `GET /api/status` of the process that listens at `http.listen`.
async fn ask(listen: &str) -> anyhow::Result<StatusObject> {
    let address = lookup_host(listen).await?.next().context("no address")?;
    let mut stream = TcpStream::connect(reachable(address)).await?;
    let request = format!("GET /api/status HTTP/1.0\r\nHost: {listen}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(LONGEST_ANSWER).read_to_end(&mut answer).await?;
    let text = std::str::from_utf8(&answer)?;
    let (head, body) = text.split_once("\r\n\r\n").context("no HTTP answer")?;
    anyhow::ensure!(
        head.split(' ').nth(1) == Some("200"),
        "answered {:?}",
        head.lines().next().unwrap_or("")
    );
    Ok(serde_json::from_str(body)?)
}

/// A wildcard is an address to listen on, not one to connect to.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

fn print(seen: &Seen, options: &cli::Status) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if options.json {
        return writeln!(out, "{}", serde_json::to_string(&seen.object)?);
    }
    if options.watch && out.is_terminal() {
        // Clear the screen, go to its corner.
        write!(out, "\x1b[2J\x1b[H")?;
    }
    writeln!(out, "{}", table(seen).trim_fmt())?;
    // A file or a pipe keeps every table: a line between them.
    if options.watch { writeln!(out) } else { Ok(()) }
}

fn table(seen: &Seen) -> Table {
    let Seen {
        facts,
        object: o,
        sizes,
    } = seen;
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let mut row = |name: &str, value: String| {
        table.add_row([name, &value]);
    };
    let record = facts.record.as_ref();
    row("slot", o.slot.clone());
    row("  state", slot_state(facts));
    row(
        "  initialised",
        record.map_or_else(
            || "no".into(),
            |r| format!("{} (life {})", r.state, or_unknown(r.life)),
        ),
    );
    row(
        "  held by",
        match &o.holder {
            Some(h) => format!(
                "pid {}, {} at {}, since {}",
                h.pid,
                h.application.as_deref().unwrap_or("an unknown application"),
                h.client
                    .as_deref()
                    .unwrap_or("a local socket or unknown address"),
                or_unknown(h.since)
            ),
            None => "nobody".into(),
        },
    );
    row(
        "publication",
        match &facts.publication {
            Some(_) => o.publication.clone(),
            None => format!("{} (missing)", o.publication),
        },
    );
    row(
        "server",
        format!(
            "PostgreSQL {}, system {}, timeline {}{}",
            facts.server.version,
            facts.server.system_identifier,
            facts.server.timeline,
            if facts.server.in_recovery {
                ", standby"
            } else {
                ""
            }
        ),
    );
    if let Some(confirmed) = o.confirmed_lsn {
        let lag = size(o.confirmed_lag_bytes);
        row("confirmed", format!("{confirmed}, {lag} behind"));
    }
    if let Some(retained) = o.retained_bytes {
        let safe = o.safe_wal_size.map_or_else(String::new, |left| {
            format!(", {} more are safe", size(Some(left.max(0) as u64)))
        });
        row("retained WAL", format!("{}{safe}", ByteSize(retained)));
    }
    row(
        "publisher",
        match o.role {
            RoleName::Publisher => "publishing".into(),
            RoleName::Standby => "standby, waits for the holder to end".into(),
            RoleName::None => "none answers at http.listen".into(),
        },
    );
    if let Some(received) = o.received_lsn {
        row("received", received.to_string());
    }
    if let Some(in_flight) = &o.in_flight {
        row(
            "in flight",
            format!("{} rows, {}", in_flight.rows, size(Some(in_flight.bytes))),
        );
    }
    if let Some(rate) = o.events_per_second {
        let eta = o
            .drain_eta_seconds
            .map_or_else(String::new, |s| format!(", done in about {s:.0} s"));
        row("throughput", format!("{rate:.0} events/s{eta}"));
    }
    if let Some(age) = o.oldest_unpublished_seconds {
        row("oldest unpublished", format!("{age:.1} s"));
    }
    for topic in o.waiting_topics.iter().flatten() {
        row(
            "waiting topic",
            format!(
                "{}: {}, {} rows since {}",
                topic.topic, topic.reason, topic.rows, topic.since
            ),
        );
    }
    if let Some(letters) = &o.dead_letters {
        row("dead letters", counts(letters));
        if let Some(keys) = o.held_keys.filter(|keys| *keys > 0) {
            let for_ever = match letters.dead {
                0 => "",
                _ => "; a dead letter holds its key until it is replayed or ignored",
            };
            row("  held keys", format!("{keys}{for_ever}"));
        }
    }
    if let Some(sizes) = sizes {
        row(
            "  on disk",
            format!(
                "{}, audit log {}",
                ByteSize(sizes.letters),
                ByteSize(sizes.audit_log)
            ),
        );
    }
    if let Some(error) = &o.last_error {
        row("last error", error.clone());
    }
    if let Some(names) = table.column_mut(0) {
        names.set_padding((0, 2));
    }
    table
}

/// Letters by status, without those that there are none of.
fn counts(letters: &LetterCounts) -> String {
    let counts = [
        (letters.pending, "pending"),
        (letters.replaying, "replaying"),
        (letters.held, "held"),
        (letters.dead, "dead"),
        (letters.resolved, "resolved"),
        (letters.ignored, "ignored"),
    ];
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let counts: Vec<_> = counts.map(|(n, name)| format!("{n} {name}")).collect();
    match counts.is_empty() {
        true => "none".into(),
        false => counts.join(", "),
    }
}

fn slot_state(facts: &SlotFacts) -> String {
    let Some(slot) = &facts.slot else {
        return "missing".into();
    };
    let active = if slot.active { "active" } else { "not active" };
    let wal = slot.wal_status.as_deref().unwrap_or("not reserved");
    format!("{active}, WAL {wal}")
}

fn or_unknown(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "unknown".into(), |value| value.to_string())
}

fn size(bytes: Option<u64>) -> String {
    or_unknown(bytes.map(ByteSize))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::pg::{
        letters::Counted,
        slot::tests::{facts, names},
    };

    /// What `ask` makes of an answer.
    async fn answered(answer: String) -> anyhow::Result<StatusObject> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let asked = tokio::spawn(async move { ask(&address).await });
        let (mut stream, _) = listener.accept().await?;
        let read = stream.read(&mut [0; 512]).await?;
        assert!(read > 0);
        stream.write_all(answer.as_bytes()).await?;
        drop(stream);
        asked.await?
    }

    #[tokio::test]
    async fn only_a_status_object_is_an_answer() {
        let object = object(&names(), Some(&facts()), None, None);
        let body = serde_json::to_string(&object).unwrap();
        let good = answered(format!("HTTP/1.0 200 OK\r\n\r\n{body}"))
            .await
            .unwrap();
        assert_eq!(good.confirmed_lag_bytes, Some(256));
        for bad in [
            "HTTP/1.0 404 Not Found\r\n\r\n",
            "HTTP/1.0 200 OK\r\n\r\n{}",
            "SSH-2.0-x\r\n",
            "",
        ] {
            assert!(answered(bad.into()).await.is_err(), "{bad}");
        }
    }

    #[test]
    fn a_wildcard_is_reached_on_this_machine() {
        for (listen, reached) in [
            ("0.0.0.0:1", "127.0.0.1:1"),
            ("[::]:1", "[::1]:1"),
            ("10.0.0.1:1", "10.0.0.1:1"),
        ] {
            assert_eq!(reachable(listen.parse().unwrap()), reached.parse().unwrap());
        }
    }

    #[test]
    fn the_table_names_what_is_known() {
        let counted = Counted {
            letters: LetterCounts {
                dead: 1,
                held: 41,
                ..LetterCounts::default()
            },
            held_keys: 1,
        };
        let seen = |facts: SlotFacts| Seen {
            object: object(&names(), Some(&facts), Some(counted), None),
            facts,
            sizes: Some(Sizes {
                letters: 4096,
                audit_log: 100,
            }),
        };
        let text = table(&seen(facts())).trim_fmt();
        for words in [
            "walpost:walpost at 127.0.0.1",
            "0/1000100, 256 B behind",
            "none answers",
            "41 held, 1 dead",
            "1; a dead letter holds its key",
            "4.0 KiB, audit log 100 B",
        ] {
            assert!(text.contains(words), "{words} is not in\n{text}");
        }
        let mut lost = facts();
        lost.slot = None;
        let text = table(&seen(lost)).trim_fmt();
        assert!(
            text.contains("missing") && !text.contains("behind"),
            "{text}"
        );
    }
}
