//! Several servers: the right one is found, the wrong one is waited out.

use crate::harness::{
    Scene, free_port, kafka::Kafka, pass, postgres::Cluster, proxy::Proxy, until,
};

#[test]
fn of_several_hosts_the_primary_is_found_and_a_standby_waited_out_on_every_version() {
    let mut primary = Cluster::start("");
    let standby = primary.standby();
    let scene = Scene::on(primary.server.clone(), Kafka::shared());
    let (_, primary_port) = primary.server.address();
    let (_, standby_port) = standby.server.address();
    let mut walpost = scene.ready(1);
    let (user, password, tag) = (
        scene.server.publisher_name(),
        scene.server.publisher_password(),
        &scene.tag,
    );
    until("the standby has the database", 60, || {
        standby.server.admin().value(&format!(
            "SELECT 1 FROM pg_database WHERE datname = '{tag}'"
        ))
    });

    let mut sent = 0;
    for wanted in ["primary", "read-write"] {
        walpost.set(
            "postgres.url",
            format!(
                "postgres://{user}:{password}@127.0.0.1:{},127.0.0.1:{standby_port},127.0.0.1:{primary_port}/{tag}?target_session_attrs={wanted}",
                free_port()
            ),
        );
        let mut run = scene.started(&walpost);
        sent += 2;
        scene.insert("a", 2);
        scene.judge_once(sent);
        run.stop(0);
    }

    // One address that leads to the primary, to the standby, and back.
    let proxy = Proxy::new(primary.server.socket_address());
    walpost.set(
        "postgres.url",
        scene.server.url_at("127.0.0.1", proxy.port, tag),
    );
    let mut run = scene.started(&walpost);
    proxy.lead_to(standby.server.socket_address());
    scene.insert("a", 5);
    run.wait_says("standby in recovery", 60);
    assert_ne!(walpost.ready(), Some(200));
    pass(3_000);
    run.assert_alive();
    let lines = run.log().lines().count();
    assert!(
        lines < 20,
        "one line per change of state, not per attempt:\n{}",
        run.log()
    );
    walpost
        .command(&["init"])
        .expect(1, &["standby", "primary"]);
    proxy.lead_to(primary.server.socket_address());
    scene.judge(sent + 5);
    run.assert_alive();

    // A standby that was promoted never had the slot: nothing is made there.
    proxy.lead_to(standby.server.socket_address());
    standby.server.admin().run("SELECT pg_promote()");
    run.expect_end(4, &[tag, "timeline changed", "slot missing"], 60);
    let slots = standby
        .server
        .admin()
        .rows("SELECT 1 FROM pg_replication_slots");
    assert!(slots.is_empty(), "a slot was created");
}
