//! The console's pages of methods, sagas, guards, nodes, settings, audit and channels, as a browser without scripts meets them: a real
//! server, a real business table, services that answer or do not.

#[allow(dead_code, reason = "shared by several tests")]
mod support;

use std::time::Duration;

use axum::http::StatusCode;
use axum::routing::any;
use redrive::gate::Hold;
use redrive::store::{AuditFilter, AuditOutcome, Audited, GateAction, Moment, Registration, Role};
use redrive::{Lane, NodeNumber, Timestamp};
use serde_json::json;
use sqlx::Connection as _;

use support::Server;
use support::visitor::Visitor;

/// What must be shown as text everywhere.
const MARKUP: &str = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&";
/// The same for names of sagas and steps, which have no `/`.
const NAME: &str = "<img src=x onerror=alert(2)>\"'&";
/// What viewers must not see.
const SECRET: &str = "of-the-customer-4711";

/// A service: `/ok` answers with a secret and markup, `/hook` takes messages, everything else fails.
async fn service() -> u16 {
    let ok = any(|| async { axum::Json(json!({ "room": MARKUP, "card": SECRET })) });
    let router = axum::Router::new()
        .route("/ok", ok)
        .route("/hook", any(|| async { "taken" }))
        .fallback(|| async { (StatusCode::INTERNAL_SERVER_ERROR, MARKUP) });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, router).await });
    port
}

impl Server {
    async fn staged() -> Self {
        let (dir, port) = (tempfile::tempdir().unwrap(), service().await);
        let shop = dir.path().join("shop.db").display().to_string();
        shop_of(&shop).await;
        let settings = format!(
            "[http]\nallow = ['127.0.0.0/8']\n\
             [guard]\nscan_interval = '1h'\n\
             [guards.bills]\ndatabase = 'sqlite://{shop}'\ntable = 'user_bill'\nservice_name = 'bills <b>x</b>'\nuser_field = 'user_id'\n\
             success_value = 'SUCCESS'\nfail_value = 'FAIL'\ncheck_url = 'http://127.0.0.1:{port}/bad'\nhandle_url = 'http://127.0.0.1:{port}/bad'\n\
             [guards.broken]\ntable = 'no_such_table'\ncheck_url = 'http://127.0.0.1:{port}/bad'\nhandle_url = 'http://127.0.0.1:{port}/bad'\n\
             success_value = 1\nfail_value = 2\n\
             [notify.channels.works]\ntype = 'webhook'\nurl = 'http://127.0.0.1:{port}/hook'\n\
             [notify.channels.fails]\ntype = 'webhook'\nurl = 'http://127.0.0.1:{port}/bad'\n"
        );
        let server = Self::start_in(dir, &settings);
        server.fill(port).await;
        server
    }

    /// Everything that pages show, with markup wherever it may be.
    async fn fill(&self, port: u16) {
        let store = self.store().await;
        let now = store.now().await.unwrap();
        store.pause(&format!("pay {MARKUP}"), Some(MARKUP), now).await.unwrap();
        store.make_gate(Lane::of("x"), &format!("host {MARKUP}"), now).await.unwrap();
        let hold = GateAction::Hold(Hold::Open);
        store.act_on_gate(Lane::of("x"), hold, "test", Some(MARKUP), now).await.unwrap();
        let text = || MARKUP.to_owned();
        let node = Registration {
            name: text(),
            build: text(),
            methods: vec![format!("pay {MARKUP}")],
            ..Registration::default()
        };
        store.register(&node, now).await.unwrap();
        let to = |path: &str| json!({ "url": format!("http://127.0.0.1:{port}{path}") });
        let once = json!({ "max_attempts": 1 });
        self.begin(&json!({ "id": "stuck-1", "input": { "card": SECRET }, "saga": { "name": "book-trip", "steps": [
                { "name": "hotel", "do": to("/ok"), "undo": to("/bad"), "undo_policy": once },
                { "name": "flight", "after": ["hotel"], "do": to("/bad"), "undo": to("/ok"), "policy": once },
            ] } }));
        for id in ["wait-1", "wait-2", "wait-3", MARKUP] {
            self.begin(
                &json!({ "id": id, "input": { "card": SECRET }, "saga": { "name": format!("order {NAME}"), "steps": [
                    { "name": "hold", "do": to("/ok"), "undo": to("/ok") },
                    { "name": format!("paid {NAME}"), "kind": { "wait_for": { "signal": "paid" } }, "after": ["hold"] },
                ] } }),
            );
        }
        self.until(|| async { self.state("stuck-1").await == "stuck" && self.state("wait-3").await == "waiting" })
            .await;
    }

    fn begin(&self, saga: &serde_json::Value) {
        let answer = self.api("POST", "/sagas", saga);
        assert_eq!(answer.status, 201, "{}", answer.body);
    }

    async fn until<F: Future<Output = bool>>(&self, holds: impl Fn() -> F) {
        for _ in 0..20_000 {
            if holds().await {
                return;
            }
        }
        panic!("it does not come about");
    }

    async fn state(&self, saga: &str) -> String {
        self.store().await.saga(saga).await.unwrap().map(|saga| saga.summary.state.to_string()).unwrap_or_default()
    }

    async fn audits(&self, action: &str) -> Vec<Audited> {
        let filter = AuditFilter { action: Some(action.into()), ..AuditFilter::default() };
        self.store().await.audits(&filter, 10).await.unwrap()
    }
}

/// A business table: one row for each state, with markup and a secret.
async fn shop_of(path: &str) {
    let mut db = sqlx::SqliteConnection::connect(&format!("sqlite://{path}?mode=rwc")).await.unwrap();
    let table = "CREATE TABLE user_bill (id BIGINT PRIMARY KEY, user_id BIGINT, status VARCHAR(20) NOT NULL, note TEXT, err_status INT, \
         err_start_time DATETIME, err_retry_count INT, err_next_retry_time DATETIME, err_min_interval INT, err_timeout INT, \
         err_submit_manual_status INT, err_next_remind_staff_time DATETIME, err_manual_notify_count INT)";
    sqlx::query(table).execute(&mut db).await.unwrap();
    for (id, status, code) in [(10, "FAIL", 4001), (11, "FAIL", 4000), (12, "SUCCESS", 2001), (13, "FAIL", 4001)] {
        let row = "INSERT INTO user_bill (id, user_id, status, note, err_status, err_start_time, err_retry_count, err_next_retry_time, \
             err_next_remind_staff_time) VALUES (?, 7, ?, ?, ?, '2098-01-01 00:00:00', 3, '2099-01-01 00:00:00', '2099-01-01 00:00:00')";
        let row = sqlx::query(row).bind(id).bind(status).bind(format!("{MARKUP} {SECRET}")).bind(code);
        row.execute(&mut db).await.unwrap();
    }
}

const GUARD: &str = "/guards/bills%20%3Cb%3Ex%3C%2Fb%3E";
/// All pages; those that viewers may not see; those that only admins may.
const PAGES: [&str; 9] = [
    "/",
    "/methods",
    "/sagas",
    "/sagas?state=waiting",
    "/sagas/stuck-1",
    "/sagas/wait-1",
    "/guards",
    "/nodes",
    "/channels",
];
const OF_OPERATORS: [&str; 2] = ["/settings", "/sagas/wait-1/kill"];
const OF_ADMINS: [&str; 3] = ["/audit", "/audit?action=gate.", "/settings/change?path=defaults.max_attempts&value=7"];

#[tokio::test(flavor = "multi_thread")]
async fn every_page_is_there_in_both_languages_and_shows_text_as_text() {
    let server = Server::staged().await;
    let admin = server.admin_with_forms();
    let markup: String =
        url::form_urlencoded::byte_serialize(MARKUP.as_bytes()).collect::<String>().replace('+', "%20");
    let mut pages: Vec<String> =
        [&PAGES[..], &OF_OPERATORS, &OF_ADMINS].concat().iter().map(ToString::to_string).collect();
    pages.extend([GUARD.to_owned(), format!("{GUARD}?status=4000"), format!("{GUARD}/rows/10")]);
    pages.extend([format!("/sagas/{markup}"), format!("/sagas?name={markup}"), format!("/audit?target={markup}")]);
    pages.push(format!("/settings/change?path=methods.%22{markup}%22.concurrency&value={markup}"));
    for page in &pages {
        let (en, zh) = (server.get(&admin, page), server.get(&admin.in_chinese(), page));
        for shown in [&en, &zh] {
            assert_eq!(shown.status, 200, "{page}: {}", shown.body);
            for raw in ["<script>alert", "<img src=x", "<b>x</b>", "style=", "onerror=alert(2)>\"", "{0}", "{1}"] {
                assert!(!shown.has(raw), "{page} has {raw}: {}", shown.body);
            }
        }
        assert!(en.has("<html lang=\"en\"") && zh.has("<html lang=\"zh-CN\""), "{page}");
        assert!(en.header("content-security-policy").contains("default-src 'none'"));
    }
    for (page, text) in [
        ("/methods", "pay &lt;script&gt;"),
        ("/methods", "host &lt;script&gt;"),
        ("/nodes", "&lt;script&gt;"),
        ("/sagas", "order &lt;img"),
        ("/sagas/wait-1", "paid &lt;img"),
        ("/sagas/wait-1", SECRET),
        ("/sagas/stuck-1", "&lt;script&gt;"),
        ("/guards", "bills &lt;b&gt;x"),
        (GUARD, SECRET),
        ("/audit", "&lt;script&gt;"),
    ] {
        let shown = server.get(&admin, page).body.replace("&#60;", "&lt;").replace("&#62;", "&gt;");
        assert!(shown.contains(text), "{page} lacks {text}: {shown}");
    }
    let zh = server.get(&admin.in_chinese(), "/sagas/stuck-1");
    assert!(zh.has("卡住") && zh.has("立即补偿") | zh.has("改为前进"), "{}", zh.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_overview_names_all_that_needs_somebody() {
    let server = Server::staged().await;
    let page = server.get(&server.admin(), "/").body.replace("&#60;", "&lt;").replace("&#62;", "&gt;");
    let needs = [
        "host &lt;script&gt;",
        "Sagas that are stuck: 1",
        "bills &lt;b&gt;x&lt;/b&gt;: rows that need people: 2",
        "broken is not guarded just now",
        "pay &lt;script&gt;",
    ];
    for need in needs {
        assert!(page.contains(need), "{need}: {page}");
    }
    let places: Vec<usize> = needs.iter().filter_map(|need| page.find(need)).collect();
    assert!(places.is_sorted(), "worst first: {places:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_sees_no_buttons_and_no_business_data() {
    let server = Server::staged().await;
    let viewer = server.somebody(Role::Viewer).await;
    for page in PAGES.iter().chain([&GUARD]) {
        let shown = server.get(&viewer, page);
        assert_eq!(shown.status, 200, "{page}");
        let forms = shown.body.matches("method=\"post\"").count();
        assert_eq!(forms, 2, "{page}: log-out and taste only: {}", shown.body);
        assert!(!shown.has(SECRET) && !shown.has("name=\"csrf\""), "{page}: {}", shown.body);
        assert!(!shown.has("href=\"/settings\"") && !shown.has("href=\"/audit\""), "{page}");
    }
    let row = format!("{GUARD}/rows/10");
    for page in OF_OPERATORS.iter().chain(&OF_ADMINS).copied().chain([row.as_str()]) {
        let shown = server.get(&viewer, page);
        assert!(shown.status == 403 && !shown.has(SECRET) && shown.has("higher role"), "{page}: {}", shown.body);
    }
    let operator = server.somebody(Role::Operator).await;
    for page in OF_OPERATORS {
        assert_eq!(server.get(&operator, page).status, 200, "{page}");
    }
    let settings = server.get(&operator, "/settings");
    assert!(!settings.has("/settings/change") && !settings.has("href=\"/audit\""), "{}", settings.body);
    for page in OF_ADMINS {
        assert_eq!(server.get(&operator, page).status, 403, "{page}");
    }
    let refused = server.audits("console.get").await;
    assert!(matches!(&refused[0].entry.outcome, AuditOutcome::Refused(why) if why.contains("admin")), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_done_for_other_sites_or_for_viewers() {
    let server = Server::staged().await;
    let (admin, viewer) = (server.admin_with_forms(), server.somebody(Role::Viewer).await);
    let row = format!("{GUARD}/rows/10/success");
    let paths = [
        "/methods/http/pause",
        "/gates/http/hold-open",
        "/sagas/wait-1/cancel",
        "/sagas/wait-1/kill",
        "/channels/works/test",
        "/settings",
        row.as_str(),
    ];
    for path in paths {
        let form = [("sure", "yes"), ("path", "defaults.max_attempts"), ("value", "7")];
        let wrong = Visitor { csrf: "wrong".into(), ..admin.clone() };
        let answer = server.post(&wrong, path, &form);
        assert!(answer.status == 403 && answer.has("session"), "{path}: {}", answer.body);
        assert_eq!(server.post(&viewer, path, &form).status, 403, "{path}");
        assert_eq!(server.post(&Visitor::default(), path, &form).status, 303, "{path}: to the log-in");
    }
    let operator = server.somebody(Role::Operator).await;
    let csrf = server.get(&operator, "/channels").csrf().to_owned();
    let operator = Visitor { csrf, ..operator };
    let form = [("path", "defaults.max_attempts"), ("value", "7")];
    assert_eq!(server.post(&operator, "/settings", &form).status, 403);
    let done =
        server.store().await.audits(&AuditFilter { who: Some("eve".into()), ..AuditFilter::default() }, 50).await;
    assert!(done.unwrap().iter().all(|record| matches!(record.entry.outcome, AuditOutcome::Refused(_))));
    assert_eq!(server.state("wait-1").await, "waiting");
}

#[tokio::test(flavor = "multi_thread")]
async fn methods_are_paused_and_gates_held() {
    let server = Server::staged().await;
    let admin = server.admin_with_forms();
    let page = server.does(&admin, "/methods/http/pause", &[("note", MARKUP)]);
    assert!(page.has("http is paused.") && page.has("/methods/http/resume"), "{}", page.body);
    assert!(!server.does(&admin, "/methods/http/resume", &[]).has("/methods/http/resume"));
    let audits = server.audits("method.").await;
    assert_eq!(audits.iter().filter(|record| record.entry.target == "http").count(), 2);
    assert_eq!(audits[1].entry.note.as_deref(), Some(MARKUP));

    let (store, host) = (server.store().await, Lane::part("http", "down.example"));
    let now = store.now().await.unwrap();
    store.make_gate(host, "down.example", now).await.unwrap();
    store.act_on_gate(host, GateAction::Hold(Hold::Open), "test", None, now).await.unwrap();
    let page = server.get(&admin, "/methods");
    assert!(page.has("gates not flowing: 1"), "{}", page.body);
    let gate = page.body.find("host &").expect("the gate that is held");
    assert!(page.body[gate..].contains("blocked by a person"), "{}", page.body);
    let lane = Lane::of("x").0;
    let note = [("note", MARKUP)];
    let page = server.does(&admin, &format!("/gates/{lane}/hold-closed"), &note);
    assert!(page.has("flowing, held by a person"), "{}", page.body);
    server.does(&admin, &format!("/gates/{lane}/release"), &[]);
    server.does(&admin, &format!("/gates/{lane}/reset"), &[]);
    let gate = server.store().await.gates().await.unwrap().into_iter().find(|gate| gate.lane.0 == lane).unwrap();
    assert_eq!(gate.held, None);
    let audits = server.audits("gate.").await;
    assert_eq!(audits[2].entry.note.as_deref(), Some(MARKUP));
    assert_eq!(server.get(&admin, "/gates").header("location"), "/methods#gates");
    assert_eq!(server.post(&admin, "/gates/nobody/reset", &[]).status, 404);
    assert_eq!(server.post(&admin, "/methods/http/explode", &[]).status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_is_tried_again_says_how_often_it_failed_and_why() {
    let server = Server::staged().await;
    let (admin, port) = (server.admin(), service().await);
    let fails = json!({ "name": "pay", "undo": "none", "do": { "url": format!("http://127.0.0.1:{port}/bad") }, "policy": { "backoff": { "fixed": "1h" } } });
    server.begin(&json!({ "id": "tries-1", "saga": { "name": "order", "steps": [fails] } }));
    server.until(|| async { server.get(&admin, "/sagas/tries-1").has("Attempts: 1 ·") }).await;
    let page = server.get(&admin, "/sagas/tries-1");
    assert!(page.has("500") && page.has("Next attempt"), "{}", page.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn people_act_on_sagas() {
    let server = Server::staged().await;
    let admin = server.admin_with_forms();
    let list = server.get(&admin, "/sagas");
    let (stuck, others) = (list.body.find("/sagas/stuck-1").unwrap(), list.body.find("/sagas/wait-1").unwrap());
    assert!(stuck < others, "what needs a person comes first");
    let only = server.get(&admin, "/sagas?id=wait-&state=waiting");
    assert!(only.has("/sagas/wait-2") && !only.has("/sagas/stuck-1"), "{}", only.body);

    let page = server.get(&admin, "/sagas/stuck-1");
    assert_eq!((page.body.matches("class=\"step ").count(), page.has("step undo_failed")), (2, true), "{}", page.body);
    assert!(page.has("goes back") && page.has("hotel") && page.has("Go forward") && !page.has("Compensate now"));
    assert!(page.has("name=\"undone\" value=\"yes\"") && page.has("name=\"undone\" value=\"no\""), "{}", page.body);
    assert_eq!(server.post(&admin, "/sagas/stuck-1/forward", &[]).status, 409, "whether the hotel was cancelled");
    server.does(&admin, "/sagas/stuck-1/forward", &[("undone", "no")]);
    server.until(|| async { server.state("stuck-1").await == "stuck" }).await; // there is still no flight
    let wrong =
        server.post(&admin, "/sagas/stuck-1/resolve", &[("step", "hotel"), ("output", "{a}"), ("note", "by hand")]);
    assert!(wrong.status == 400 && wrong.has("{a}</textarea>") && wrong.has("value=\"by hand\""), "{}", wrong.body);
    server.does(&admin, "/sagas/stuck-1/resolve", &[("step", "hotel"), ("output", "{\"a\": 1}"), ("note", MARKUP)]);
    server.until(|| async { server.state("stuck-1").await == "compensated" }).await;
    let page = server.get(&admin, "/sagas/stuck-1");
    assert!(!page.has("/sagas/stuck-1/retry") && page.has("It ended: compensated"), "{}", page.body);

    server.does(&admin, "/sagas/wait-1/input", &[("input", "{\"card\": \"other\"}")]);
    let wrong = server.post(&admin, "/sagas/wait-1/input", &[("input", "{card}")]);
    assert!(wrong.status == 400 && wrong.has("this is not JSON"), "{}", wrong.body);
    assert!(
        wrong.has("{card}</textarea>") && wrong.has("role=\"alert\"") && wrong.has("data-live=\"\""),
        "{}",
        wrong.body
    );
    let wrong = server.post(&admin, "/sagas/wait-1/signal", &[("signal", "paid"), ("payload", "{by}")]);
    assert!(
        wrong.status == 400 && wrong.has("{by}</textarea>") && wrong.has("value=\"paid\" selected"),
        "{}",
        wrong.body
    );
    server.does(&admin, "/sagas/wait-1/signal", &[("signal", "paid"), ("payload", "{\"by\": \"card\"}")]);
    server.until(|| async { server.state("wait-1").await == "succeeded" }).await;
    assert!(server.get(&admin, "/sagas/wait-1").has("It was told paid"));

    server.does(&admin, "/sagas/wait-2/cancel", &[("note", "wrong order")]);
    server.until(|| async { server.state("wait-2").await == "compensated" }).await;

    let asked = server.get(&admin, "/sagas/wait-3/kill");
    assert!(asked.has("Nothing is undone") && asked.has("<li>hold</li>"), "{}", asked.body);
    assert_eq!(server.post(&admin, "/sagas/wait-3/kill", &[]).status, 400, "it takes a second word");
    server.does(&admin, "/sagas/wait-3/kill", &[("sure", "yes"), ("note", MARKUP)]);
    assert_eq!(server.state("wait-3").await, "killed");
    assert_eq!(server.post(&admin, "/sagas/nobody/cancel", &[]).status, 404);
    let actions: Vec<String> = server.audits("saga.").await.into_iter().map(|record| record.entry.action).collect();
    for action in ["forward", "resolve", "edit_input", "cancel", "kill"] {
        assert!(actions.iter().any(|known| known.contains(action)), "{action}: {actions:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_guarded_tables_are_shown_and_closed() {
    let server = Server::staged().await;
    let admin = server.admin_with_forms();
    let page = server.get(&admin, "/guards");
    assert!(page.has("not guarded just now") && page.has("no_such_table"), "{}", page.body);
    let page = server.get(&admin, GUARD);
    assert!(page.has("/rows/10\"") && page.has("/rows/13\"") && !page.has("/rows/11\""), "{}", page.body);
    assert!(server.get(&admin, &format!("{GUARD}?status=4000")).has("/rows/11\""));
    let row = format!("{GUARD}/rows/10");
    assert!(server.get(&admin, &row).has("They are told again at 2099-01-01 00:00:00"));
    let page = server.does(&admin, &format!("{row}/success"), &[]);
    assert!(page.has("2002 mended by people") && page.has("SUCCESS") && !page.has("/success\""), "{}", page.body);
    assert_eq!(server.audits("guard.").await[0].entry.target, "bills <b>x</b> 10");
    assert_eq!(server.get(&admin, &format!("{GUARD}/rows/99")).status, 404);
    assert_eq!(server.get(&admin, "/guards/nobody").status, 404);
    let broken = server.get(&admin, "/guards/broken");
    assert!(broken.status == 503 && broken.has("This table is not guarded just now"), "{}", broken.body);
    assert!(server.get(&admin.in_chinese(), "/guards/broken").has("此表当前未受守护"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_business_database_that_hangs_is_named_and_takes_no_page_with_it() {
    let server = Server::staged().await;
    let admin = server.admin();
    let mut db =
        sqlx::SqliteConnection::connect(&format!("sqlite://{}", server.path("shop.db").display())).await.unwrap();
    sqlx::query("BEGIN EXCLUSIVE").execute(&mut db).await.unwrap();
    for page in ["/", "/guards", GUARD] {
        let shown = server.get(&admin, page);
        assert_eq!(shown.status, 200, "{page}: {}", shown.body);
        assert!(shown.has("its database has not answered for 2 s"), "{page}: {}", shown.body);
        assert!(shown.has("bills &#60;b&#62;x") | shown.has("bills &lt;b&gt;x"), "{page}: {}", shown.body);
    }
    let listed = server.api("GET", "/guards", &serde_json::Value::Null);
    assert!(listed.status == 200 && listed.has("has not answered"), "{}", listed.body);
    sqlx::query("COMMIT").execute(&mut db).await.unwrap();
    server.until(|| async { !server.get(&admin, "/guards").has("has not answered") }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_say_how_far_they_are_behind() {
    let server = Server::start("");
    let (admin, store) = (server.admin(), server.store().await);
    let next_minute = store.now().await.unwrap().as_millis() / 60_000 * 60_000 + 60_000;
    let mut minute = Moment::at(Timestamp::from_millis(next_minute));
    minute.lag = Some(Duration::from_secs(90));
    store.note_minute(NodeNumber(9), &minute).await.unwrap();
    let page = server.get(&admin, "/nodes");
    assert!(page.has("<b>Lag:</b> 1 min 30 s") && page.has("lag warn"), "{}", page.body);
    assert!(server.get(&admin.in_chinese(), "/nodes").has("延迟"));
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_with_different_leases_are_shown_with_them() {
    let server = Server::start("");
    let (admin, store) = (server.admin(), server.store().await);
    assert!(!server.get(&admin, "/nodes").has("Nodes have different leases"));
    let slow = Registration { name: "slow".into(), lease: Duration::from_secs(60), ..Registration::default() };
    store.register(&slow, store.now().await.unwrap()).await.unwrap();
    let page = server.get(&admin, "/nodes");
    assert!(page.has("Nodes have different leases") && page.has("1 min"), "{}", page.body);
    let listed = server.api("GET", "/nodes", &serde_json::Value::Null);
    assert!(listed.has(r#""lease":"10s""#) && listed.has(r#""lease":"1m""#), "{}", listed.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_setting_is_looked_at_before_it_is_saved() {
    let server = Server::staged().await;
    let admin = server.admin_with_forms();
    let change = "/settings/change?path=engine.scan_interval";
    let page = server.get(&admin, &format!("{change}&value=2s"));
    assert!(page.has("5s</del>") && page.has("2s</ins>") && page.has("id=\"save\""), "{}", page.body);
    for (value, why) in [("0s", "scan_interval"), ("soon", "scan_interval"), ("5s", "so already")] {
        let page = server.get(&admin, &format!("{change}&value={value}"));
        assert!(page.has("role=\"alert\"") && page.has(why) && !page.has("id=\"save\""), "{value}: {}", page.body);
    }
    let page = server.get(&admin, "/settings/change?path=engine.lease&value=1m");
    assert!(page.has("belong into the file"), "{}", page.body);

    let form = [("path", "engine.scan_interval"), ("value", "2s"), ("was", "")];
    let page = server.does(&admin, "/settings", &form);
    assert!(page.has("set by"), "{}", page.body);
    assert_eq!(server.post(&admin, "/settings", &form).status, 409, "somebody has set it since");
    let wrong = [("path", "engine.scan_interval"), ("value", "0s"), ("was", "\"2s\"")];
    assert_eq!(server.post(&admin, "/settings", &wrong).status, 422);
    let page = server.get(&admin, &format!("{change}&unset=yes"));
    assert!(page.has("2s</del>") && page.has("as the file says</ins>"), "{}", page.body);
    server.does(&admin, "/settings", &[("path", "engine.scan_interval"), ("unset", "yes"), ("was", "\"2s\"")]);
    let path = "methods.charge.per_business";
    let page = server.get(&admin, &format!("/settings/change?path={path}&value=1"));
    assert!(page.has("with their next start"), "{}", page.body);
    let page = server.does(&admin, "/settings", &[("path", path), ("value", "1"), ("was", "")]);
    assert!(page.has("It holds from the next start of each node on."), "{}", page.body);
    let page = server.does(&admin, "/settings", &[("path", path), ("value", "2"), ("was", "1")]);
    assert!(page.has("It holds from the next start of each node on."), "{}", page.body);
    let page = server.get(&admin, &format!("/settings/change?path={path}&unset=yes"));
    assert!(page.has("with their next start"), "{}", page.body);
    let audits = server.audits("settings.").await;
    assert_eq!(
        audits.iter().skip(2).map(|record| record.entry.action.as_str()).collect::<Vec<_>>(),
        ["settings.unset", "settings.set"]
    );
    assert_eq!((&audits[3].entry.before, &audits[3].entry.after), (&None, &Some(json!("2s"))));
}

#[tokio::test(flavor = "multi_thread")]
async fn channels_are_tried_and_the_audit_is_read_page_by_page() {
    let server = Server::staged().await;
    let admin = server.admin_with_forms();
    assert!(server.does(&admin, "/channels/works/test", &[]).has("works has taken the test message."));
    let failed = server.post(&admin, "/channels/fails/test", &[]);
    assert!(failed.status == 502 && failed.has("was not taken by fails") && failed.has("500"), "{}", failed.body);
    assert!(!failed.has("<script>alert"), "{}", failed.body);
    assert_eq!(server.post(&admin, "/channels/nobody/test", &[]).status, 404);
    let audits = server.audits("channel.test").await;
    assert_eq!(
        audits.iter().map(|record| record.entry.after.as_ref().unwrap()["taken"] == true).collect::<Vec<_>>(),
        [false, true]
    );

    let store = server.store().await;
    for n in 0..60 {
        let entry = redrive::store::AuditEntry::new("eve", "test.page", format!("target-{n}"));
        store.audit(&entry, store.now().await.unwrap()).await.unwrap();
    }
    let page = server.get(&admin, "/audit?who=eve&action=test.");
    assert!(page.has("target-59") && !page.has("target-9<"), "{}", page.body);
    let next = page
        .body
        .split("rel=\"next\" href=\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap()
        .replace("&amp;", "&")
        .replace("&#38;", "&");
    let rest = server.get(&admin, &next);
    assert!(rest.has("target-9<") && !rest.has("target-59") && !rest.has("rel=\"next\""), "{}", rest.body);
    assert!(!server.get(&admin, "/audit?before=2020-01-01T00:00").has("target-59"));
    assert_eq!(server.get(&admin, "/audit?from=yesterday").status, 400);
}

/// The page that was looked at is no part of what is done.
#[tokio::test(flavor = "multi_thread")]
async fn as_many_are_discarded_as_were_counted() {
    let server = Server::start("");
    let admin = server.admin();
    let enqueue = |key: &str| {
        let made = server.api("POST", "/tasks", &json!({ "method": "nobodys", "key": key })).json();
        made["id"].as_str().unwrap().to_owned()
    };
    let ids = ["a", "b", "c"].map(enqueue);
    for (path, action, question) in
        [("/tasks", "fail", "Give up 3 tasks?"), ("/dead", "discard", "Discard 3 dead letters?")]
    {
        let asked = server.get(&admin, &format!("{path}/bulk?which=filter&action={action}&after={}", ids[1]));
        assert!(asked.has(question) && !asked.has("name=\"after\""), "{}", asked.body);
        let form = [("csrf", asked.csrf()), ("which", "filter"), ("action", action), ("after", &ids[1])];
        let done = server.post(&admin, &format!("{path}/bulk"), &form);
        assert!(done.has("<dt>Done</dt><dd>3</dd>"), "{}", done.body);
    }
}
