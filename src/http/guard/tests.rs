//! Requests of operators, of strangers, and of pages in operators' browsers.

use std::io::Write;

use super::*;

fn guard(token: Option<&str>) -> (Guard, Option<tempfile::NamedTempFile>) {
    let file = token.map(|token| {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "{token}").unwrap();
        file
    });
    let guard = Guard {
        listen: "outbox.internal".into(),
        machine: Some("db-1".into()),
        token_file: file.as_ref().map(|file| file.path().to_owned()),
    };
    (guard, file)
}

fn ask(guard: &Guard, client: &str, headers: &[(&'static str, &str)]) -> Result<(), u16> {
    let ends = Ends {
        client: client.parse().unwrap(),
        here: "10.0.0.5:9464".parse().unwrap(),
    };
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, value.parse().unwrap());
    }
    guard
        .allow(ends, &map)
        .map_err(|Forbidden(code, _)| code.as_u16())
}

const HERE: &str = "127.0.0.1:50000";
const THERE: &str = "10.0.0.9:50000";

#[test]
fn without_a_token_only_this_machine_is_let_in() {
    let (guard, _) = guard(None);
    for client in [HERE, "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        assert_eq!(ask(&guard, client, &[("host", "localhost:9464")]), Ok(()));
    }
    assert_eq!(ask(&guard, THERE, &[("host", "10.0.0.5:9464")]), Err(403));
    let proxied = [("host", "localhost"), ("x-forwarded-for", "10.0.0.9")];
    assert_eq!(ask(&guard, HERE, &proxied), Err(403));
}

#[test]
fn a_page_of_another_site_is_kept_out() {
    let (open, _) = guard(None);
    let (with_token, _file) = guard(Some("s3cret"));
    let bearer = ("authorization", "Bearer s3cret");
    for host in [
        "localhost",
        "LOCALHOST:9464",
        "127.0.0.1:9464",
        "[::1]:9464",
        "10.0.0.5:9464",
        "outbox.internal:9464",
        "db-1:9464",
    ] {
        assert_eq!(ask(&open, HERE, &[("host", host)]), Ok(()), "{host}");
        let origin = format!("http://{host}");
        let own = [("host", host), ("origin", origin.as_str())];
        assert_eq!(ask(&open, HERE, &own), Ok(()), "{origin}");
    }
    for host in [
        "evil.example",
        "evil.example:9464",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "",
        "[::1].evil.example",
    ] {
        let rebound = [("host", host), bearer];
        assert_eq!(ask(&open, HERE, &rebound), Err(403), "{host}");
        assert_eq!(ask(&with_token, HERE, &rebound), Err(403), "{host}");
    }
    for origin in [
        "http://evil.example",
        "null",
        "http://localhost:8000",
        "http://localhost:9464.evil.example",
        "ftp://localhost:9464",
        "",
    ] {
        let foreign = [("host", "localhost:9464"), ("origin", origin), bearer];
        assert_eq!(ask(&open, HERE, &foreign), Err(403), "{origin}");
        assert_eq!(ask(&with_token, THERE, &foreign), Err(403), "{origin}");
    }
    assert_eq!(ask(&open, HERE, &[]), Err(403), "no Host");
    let two = [("host", "localhost"), ("host", "evil.example")];
    assert_eq!(ask(&open, HERE, &two), Err(403));
    assert_eq!(ask(&open, HERE, &[("host", "192.0.2.1")]), Err(403));
}

#[test]
fn with_a_token_everybody_needs_it() {
    let (guard, file) = guard(Some("s3cret"));
    let host = ("host", "192.0.2.1:80");
    for client in [HERE, THERE] {
        for given in ["Bearer s3cret", "bearer  s3cret"] {
            let headers = [host, ("authorization", given)];
            assert_eq!(ask(&guard, client, &headers), Ok(()), "{given}");
        }
        for given in [
            "Bearer s3cre",
            "Bearer s3crett",
            "Bearer ",
            "Basic s3cret",
            "s3cret",
        ] {
            let headers = [host, ("authorization", given)];
            assert_eq!(ask(&guard, client, &headers), Err(401), "{given}");
        }
        assert_eq!(ask(&guard, client, &[host]), Err(401));
    }
    let headers = [host, ("authorization", "Bearer n3w")];
    let file = file.unwrap();
    fs::write(file.path(), "n3w\nnot this\n").unwrap();
    assert_eq!(ask(&guard, THERE, &headers), Ok(()), "read again");
    file.close().unwrap();
    assert_eq!(
        ask(&guard, HERE, &headers),
        Err(500),
        "never open without it"
    );
}

#[test]
fn with_a_token_a_service_is_known_by_the_names_of_its_network() {
    let (open, _) = guard(None);
    let (with_token, _file) = guard(Some("s3cret"));
    let bearer = ("authorization", "Bearer s3cret");
    for host in [
        "walpost:9464",
        "walpost.ns.svc:9464",
        "Walpost.ns.SVC",
        "walpost.ns.svc.cluster.local:9464",
        "walpost.ns.svc.cluster.local.:9464",
        "walpost.shop.internal",
    ] {
        let headers = [("host", host), bearer];
        assert_eq!(ask(&with_token, THERE, &headers), Ok(()), "{host}");
        assert_eq!(ask(&with_token, THERE, &headers[..1]), Err(401), "{host}");
        assert_eq!(ask(&open, HERE, &headers), Err(403), "{host}");
        let origin = format!("http://{host}");
        let own = [("host", host), ("origin", origin.as_str()), bearer];
        assert_eq!(ask(&with_token, THERE, &own), Ok(()), "{host}");
        let foreign = [("host", host), ("origin", "http://evil.svc"), bearer];
        assert_eq!(ask(&with_token, THERE, &foreign), Err(403), "{host}");
    }
    for host in [
        "walpost.ns.svc.evil.example",
        "evil.example.",
        ".svc",
        "a..svc",
        "evil.example/.svc",
        ".",
    ] {
        let headers = [("host", host), bearer];
        assert_eq!(ask(&with_token, THERE, &headers), Err(403), "{host}");
    }
}

#[test]
fn a_token_file_that_cannot_be_used_ends_the_start() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut config = config::Http {
        admin_token_file: Some(file.path().to_owned()),
        ..config::Http::default()
    };
    let stop = Guard::new(&config).err().unwrap();
    assert_eq!(stop.exit, Exit::Usage);
    assert!(stop.to_string().contains("has no token"), "{stop}");
    config.admin_token_file = Some("/nowhere/token".into());
    let stop = Guard::new(&config).err().unwrap();
    assert!(stop.to_string().contains("/nowhere/token"), "{stop}");
}

#[test]
fn hosts_lose_their_port() {
    for (address, name) in [
        ("a:1", "a"),
        ("a", "a"),
        ("[::1]:9464", "::1"),
        ("[::1]", "::1"),
        ("::1", "::1"),
        ("127.0.0.1:5", "127.0.0.1"),
        ("", ""),
    ] {
        assert_eq!(host(address), name, "{address}");
    }
}
