//! The console as a browser without scripts meets it: a real server, plain HTTP.

#[allow(dead_code, reason = "shared by several tests")]
mod support;

use redrive::store::{AuditFilter, AuditOutcome, DeadFilter, Role};
use redrive::{Context, Engine, Failure, NewTask, Policy, Verdict};

use support::Server;
use support::visitor::Visitor;

/// What must be shown as text everywhere.
const MARKUP: &str = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&";

/// Tasks and letters that are full of markup: an id of a task that waits, and of a letter.
async fn fill(server: &Server, letters: usize) -> (String, String) {
    let fails = |_cx: Context, _params: String| async {
        Err::<(), _>(Verdict::Failed(Failure::retry(format!("kind{MARKUP}"), MARKUP)))
    };
    let engine = Engine::builder(server.store().await).register("fails", fails).discover(false).start().await.unwrap();
    let once = Policy { max_attempts: Some(1), ..Policy::default() };
    let mut ids = Vec::new();
    for n in 0..letters {
        let task = NewTask::new("fails", MARKUP).unwrap().business("b<i>", MARKUP).key(format!("{MARKUP}{n}"));
        ids.push(engine.enqueue(task.policy(once.clone())).await.unwrap().id);
    }
    let waits = NewTask::new(format!("waits{MARKUP}"), MARKUP).unwrap().business("b<i>", MARKUP).key(MARKUP);
    let waits = engine.enqueue(waits).await.unwrap().id;
    for id in &ids {
        while engine.store().get_dead(*id).await.unwrap().is_none() {
            tokio::task::yield_now().await;
        }
    }
    engine.stop().await;
    (waits.to_string(), ids[0].to_string())
}

/// Every page, for somebody who is logged in. New pages have their place here.
fn pages(waits: &str, letter: &str) -> Vec<String> {
    let all = [
        "/",
        "/tasks",
        "/tasks?method=nothing",
        "/tasks/ended",
        "/tasks/ended?as=resolved",
        "/tasks?error=%3Cscript%3Ealert(1)%3C/script%3E",
        "/dead",
        "/dead?business_id=%3Cb%3E&reason=exhausted",
        "/nothing/%3Cscript%3Ealert(1)%3C/script%3E",
    ];
    let mut all: Vec<String> = all.map(str::to_owned).into();
    all.extend([format!("/tasks/{waits}"), format!("/tasks/{letter}"), format!("/dead/{letter}")]);
    all
}

#[tokio::test]
async fn somebody_logs_in_until_their_token_is_revoked() {
    let server = Server::start("");
    let nobody = Visitor::default();
    let sent = server.get(&nobody, "/tasks?method=a");
    assert_eq!((sent.status, sent.header("location")), (303, "/login?next=%2Ftasks%3Fmethod%3Da"));
    let wrong = server.post(&nobody, "/login", &[("token", "rdr_x_y")]);
    assert_eq!(wrong.status, 401);
    assert!(wrong.body.contains("not known") && wrong.header("set-cookie").is_empty());
    let away = server.post(&nobody, "/login", &[("token", &server.token), ("next", "//evil.example")]);
    assert_eq!(away.header("location"), "/");
    let https = Visitor { headers: "x-forwarded-proto: https\r\n".into(), ..Visitor::default() };
    assert!(server.post(&https, "/login", &[("token", &server.token)]).header("set-cookie").contains("; Secure"));

    let (secret, id) = server.new_token("eve", Role::Viewer).await;
    let eve = server.log_in(&secret);
    let page = server.get(&eve, "/");
    assert_eq!(page.status, 200);
    assert!(page.header("content-security-policy").contains("script-src 'self'") && page.body.contains("eve"));
    let revoke = format!(
        "DELETE /api/v1/tokens/{id} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {}\r\n\r\n",
        server.token
    );
    assert_eq!(server.ask(&revoke).status, 204);
    assert_eq!(server.get(&eve, "/").status, 303, "the session ends with the token");
    let out = server.post(&server.admin(), "/logout", &[]);
    assert!(out.header("set-cookie").contains("redrive_session=; ") && out.header("set-cookie").contains("Max-Age=0"));
}

#[tokio::test]
async fn a_cookie_may_look_at_the_api_and_change_nothing_by_it() {
    let server = Server::start("");
    let admin = server.admin();
    assert_eq!(server.get(&admin, "/api/v1/overview").status, 200);
    assert_eq!(server.post(&admin, "/api/v1/tasks", &[]).status, 401);
    assert_eq!(
        server.get(&Visitor { cookies: "redrive_session=AAAA".into(), ..admin }, "/api/v1/overview").status,
        401
    );
}

#[tokio::test]
async fn forms_are_of_one_session_and_of_this_site() {
    let server = Server::start("");
    let (waits, letter) = fill(&server, 1).await;
    let (admin, other) = (server.admin(), server.admin());
    let path = format!("/tasks/{waits}/retry");
    let page = server.get(&admin, &format!("/tasks/{waits}"));
    let foreign = server.get(&other, &format!("/tasks/{waits}"));
    for csrf in ["", "x", foreign.csrf()] {
        let refused = server.post(&admin, &path, &[("csrf", csrf)]);
        assert!(refused.status == 403 && refused.body.contains("load the page again"), "{}", refused.body);
    }
    for header in ["sec-fetch-site: cross-site", "origin: https://evil.example"] {
        let elsewhere = Visitor { headers: format!("{header}\r\n"), ..admin.clone() };
        assert_eq!(server.post(&elsewhere, &path, &[("csrf", page.csrf())]).status, 403, "{header}");
    }
    let done = server.post(&admin, &path, &[("csrf", page.csrf())]);
    assert_eq!((done.status, done.header("location")), (303, &*format!("/tasks/{waits}")));
    let said = Visitor { cookies: format!("{}; {}", admin.cookies, done.cookie()), ..admin.clone() };
    let shown = server.get(&said, &format!("/tasks/{waits}"));
    assert!(
        shown.body.contains(&format!("Task {waits} is due now.")) && shown.header("set-cookie").contains("Max-Age=0")
    );

    let redriven = server.post(&admin, &format!("/dead/{letter}/redrive"), &[("csrf", page.csrf()), ("note", "again")]);
    let new = redriven.header("location").to_owned();
    assert!(redriven.status == 303 && new.starts_with("/tasks/") && !new.ends_with(&letter), "{new}");
    assert!(server.get(&admin, &new).body.contains(&letter), "it names where it came from");
    assert!(server.get(&admin, &format!("/tasks/{letter}")).body.contains("brought back as a new task"));
}

#[tokio::test]
async fn a_policy_is_edited_and_mistakes_are_named() {
    let server = Server::start("");
    let (waits, _) = fill(&server, 1).await;
    let admin = server.admin();
    let page = server.get(&admin, &format!("/tasks/{waits}"));
    let edit =
        |json: &str| server.post(&admin, &format!("/tasks/{waits}/policy"), &[("csrf", page.csrf()), ("policy", json)]);
    assert_eq!(edit("{\"max_attempts\": 7, \"jitter\": \"none\"}").status, 303);
    assert!(server.get(&admin, &format!("/tasks/{waits}")).body.contains("Tries up to 7 times over about 2 min"));
    let wrong = edit("{\"max_attempts\": 0}");
    assert!(wrong.status == 422 && wrong.body.contains("max_attempts"), "{}", wrong.body);
    let wrong = edit("{\"max_attempts\": 3, oops}");
    assert!(wrong.status == 400 && wrong.has("role=\"alert\"") && wrong.has("oops}</textarea>"), "{}", wrong.body);
    assert!(wrong.has("id=\"edit\" open") && wrong.has("data-live=\"\""), "it is not loaded anew under one's hands");
    assert!(wrong.has(&format!("name=\"back\" value=\"/tasks/{waits}\"")), "{}", wrong.body);
}

#[tokio::test]
async fn a_filter_that_is_not_understood_is_shown_as_it_was_typed() {
    let server = Server::start("");
    let admin = server.admin();
    for path in ["/tasks", "/tasks/ended", "/dead", "/audit"] {
        let page = server.get(&admin, &format!("{path}?from=yesterday"));
        assert!(page.status == 400 && page.has("value=\"yesterday\""), "{path}: {}", page.body);
        assert!(page.has("role=\"alert\"") && page.has("from:") && page.has("is not a time"), "{path}: {}", page.body);
    }
}

#[tokio::test]
async fn examples_name_the_address_that_was_asked_for() {
    let server = Server::start("");
    let admin = server.admin();
    for (page, path) in [("/", "tasks"), ("/tasks", "tasks"), ("/sagas", "sagas")] {
        let curl = format!("curl -X POST http://{}/api/v1/{path} ", server.address);
        assert!(server.get(&admin, page).has(&curl), "{page}");
    }
    let proxied = "x-forwarded-host: jobs.example.org\r\nx-forwarded-proto: https\r\n";
    let proxied = Visitor { headers: proxied.into(), ..admin };
    assert!(server.get(&proxied, "/tasks").has("curl -X POST https://jobs.example.org/api/v1/tasks "));
}

/// Letters of one method that died of these.
async fn died_of(server: &Server, method: &str, errors: &'static [&'static str]) {
    let fails = move |_cx: Context, n: usize| async move {
        Err::<(), _>(Verdict::Failed(Failure::retry("remote", errors.get(n).copied().unwrap_or_default())))
    };
    let engine = Engine::builder(server.store().await).register(method, fails).discover(false).start().await.unwrap();
    let once = Policy { max_attempts: Some(1), ..Policy::default() };
    for n in 0..errors.len() {
        let id = engine.enqueue(NewTask::new(method, &n).unwrap().policy(once.clone())).await.unwrap().id;
        while engine.store().get_dead(id).await.unwrap().is_none() {
            tokio::task::yield_now().await;
        }
    }
    engine.stop().await;
}

#[tokio::test]
async fn a_group_is_redriven_whole_and_alone_or_not_offered() {
    let server = Server::start("");
    let lines =
        &["order 17:\r\nno route to the warehouse\r\n  at 7", "order 4:\r\nno route to the warehouse\r\n  at 9"];
    died_of(&server, "lines", lines).await;
    died_of(&server, "numbers", &["404", "17", "something else"]).await;
    let admin = server.admin();
    let page = server.get(&admin, "/dead");
    let links = page.body.split("href=\"/dead/bulk?").skip(1).map(|rest| rest.split('"').next().unwrap());
    let links: Vec<_> = links.map(|link| link.replace("&#38;", "&").replace("&amp;", "&")).collect();
    assert_eq!(links.len(), 2, "that of numbers has nothing by which it can be told apart: {}", page.body);
    for link in &links {
        assert!(!link.contains("%0D") && !link.contains("%0A") && link.contains("error="), "{link}");
    }
    let lines = links.iter().find(|link| link.contains("method=lines")).unwrap();
    let asked = server.get(&admin, &format!("/dead/bulk?{lines}"));
    assert!(asked.has("Redrive 2 dead letters?") && asked.has("no route to the warehouse</dd>"), "{}", asked.body);
}

#[tokio::test]
async fn a_viewer_sees_no_params_and_no_buttons() {
    let server = Server::start("");
    let (waits, letter) = fill(&server, 1).await;
    let (secret, _) = server.new_token("eve", Role::Viewer).await;
    let eve = server.log_in(&secret);
    for path in pages(&waits, &letter) {
        let page = server.get(&eve, &path);
        let main = page.body.split("<main").nth(1).unwrap();
        let main = main.split("</main>").next().unwrap();
        assert!(!main.contains("method=\"post\"") && !main.contains("name=\"csrf\""), "{path}: {main}");
        assert!(!main.contains("type=\"checkbox\""), "{path}");
    }
    let page = server.get(&eve, &format!("/tasks/{waits}"));
    assert!(page.body.contains("Viewers do not see params") && !page.body.contains("curl"), "{}", page.body);
    assert_eq!(server.get(&eve, "/dead/bulk?action=redrive&which=filter").status, 403);
    let csrf = server.get(&server.admin(), &format!("/tasks/{waits}"));
    assert_eq!(server.post(&eve, &format!("/tasks/{waits}/cancel"), &[("csrf", csrf.csrf())]).status, 403);
    let store = server.store().await;
    assert!(store.get(waits.parse().unwrap()).await.unwrap().is_some(), "it is still there");
}

#[tokio::test]
async fn what_a_viewer_tries_is_in_the_audit() {
    let server = Server::start("");
    let (waits, _) = fill(&server, 1).await;
    let (secret, _) = server.new_token("eve", Role::Viewer).await;
    let eve = server.log_in(&secret);
    // Any page's form of hers would do: there is none, so she makes the secret of her own session's forms.
    let csrf = csrf_of(eve.cookies.trim_start_matches("redrive_session="));
    let refused = server.post(&eve, &format!("/tasks/{waits}/cancel"), &[("csrf", &csrf)]);
    assert_eq!(refused.status, 403, "{}", refused.body);
    let filter = AuditFilter { who: Some("eve".into()), ..AuditFilter::default() };
    let audit = server.store().await.audits(&filter, 1).await.unwrap();
    assert_eq!(audit[0].entry.action, "console.post");
    assert!(matches!(&audit[0].entry.outcome, AuditOutcome::Refused(why) if why.contains("operator")), "{audit:?}");
}

/// As the console makes it of a cookie.
fn csrf_of(cookie: &str) -> String {
    use base64::Engine as _;
    use hmac::{KeyInit as _, Mac as _};
    let mut mac = hmac::Hmac::<sha2::Sha256>::new_from_slice(cookie.as_bytes()).unwrap();
    mac.update(b"redrive console forms");
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes())
}

#[tokio::test]
async fn markup_is_text_on_every_page_and_nothing_is_inline() {
    let server = Server::start("");
    let (waits, letter) = fill(&server, 3).await;
    let store = server.store().await;
    let mut letters = store.dead(&DeadFilter::default(), 10).await.unwrap().into_iter().map(|dead| dead.task.id);
    let other = letters.find(|id| id.to_string() != letter).unwrap();
    store.resolve(&[other], "eve", Some(MARKUP), store.now().await.unwrap()).await.unwrap();
    let admin = server.admin();
    assert!(server.get(&admin, "/tasks/ended?as=resolved").has(&format!("/tasks/{other}")));
    let mut all = pages(&waits, &letter);
    all.extend(
        [
            "/dead/bulk?action=redrive&which=filter&method=%3Cscript%3Ealert(1)",
            "/login?next=%22%3E%3Cscript%3Ealert(1)",
        ]
        .map(Into::into),
    );
    all.push(format!("/dead/bulk?action=discard&id={letter}"));
    let mut shown = 0;
    for path in all {
        for lang in ["en", "zh"] {
            let who = Visitor { cookies: format!("{}; redrive_lang={lang}", admin.cookies), ..Visitor::default() };
            let page = server.get(&who, &path);
            assert!(page.status < 500, "{path}: {}", page.body);
            let text = &page.body;
            shown += text.matches("&#60;script&#62;").count() + text.matches("&lt;script&gt;").count();
            assert!(!text.contains("<script>") && !text.contains("<img"), "{path}: {text}");
            assert!(!text.contains(" style=") && !text.contains("<style"), "{path}");
            assert!(!has_handler(text), "{path}: {text}");
            if page.status < 300 || page.status >= 400 {
                assert!(page.header("content-security-policy").starts_with("default-src 'none'"), "{path}");
            }
        }
    }
    assert!(shown > 20, "the markup was there to be shown: {shown}");
}

/// Whether there is an attribute such as `onclick="…"`.
fn has_handler(html: &str) -> bool {
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase());
    html.split(" on").skip(1).any(|rest| rest.split_once("=\"").is_some_and(|(name, _)| is_name(name)))
}

#[tokio::test]
async fn both_languages_by_browser_and_by_choice() {
    let server = Server::start("");
    let chinese = Visitor { headers: "accept-language: zh-CN,en;q=0.5\r\n".into(), ..Visitor::default() };
    let page = server.get(&chinese, "/login");
    assert!(page.body.contains("<html lang=\"zh-CN\"") && page.body.contains("登录"), "{}", page.body);
    let chosen = server.post(&chinese, "/preferences", &[("lang", "en"), ("back", "/login")]);
    assert_eq!((chosen.status, chosen.cookie()), (303, "redrive_lang=en"));
    let english = Visitor { cookies: chosen.cookie().to_owned(), ..chinese };
    assert!(server.get(&english, "/login").body.contains("<html lang=\"en\""));
    let dark = server.post(&english, "/preferences", &[("theme", "dark"), ("back", "https://evil.example")]);
    assert_eq!((dark.cookie(), dark.header("location")), ("redrive_theme=dark", "/"));
    let odd = server.post(&english, "/preferences", &[("theme", "dark"), ("back", "/\u{1}")]);
    assert_eq!((odd.status, odd.header("location")), (303, "/"), "no header can have that");
    assert_eq!(server.post(&english, "/preferences", &[("lang", "<x>"), ("theme", "x")]).header("set-cookie"), "");
}

#[tokio::test]
async fn a_page_that_there_is_not_is_a_page_for_people_and_a_problem_for_programs() {
    let server = Server::start("");
    let page = server.get(&Visitor::default(), "/nothing");
    assert_eq!((page.status, page.header("content-type")), (404, "text/html; charset=utf-8"));
    let api = server.get(&Visitor::default(), "/api/v1/nothing");
    assert_eq!((api.status, api.header("content-type")), (404, "application/problem+json"));
    let program = server.ask("GET /nothing HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    assert_eq!((program.status, program.header("content-type")), (404, "application/problem+json"));
    let admin = server.admin();
    for (path, status) in [("/tasks/7", 404), ("/tasks/x", 422), ("/tasks?last=soon", 400), ("/dead?reason=why", 400)] {
        let page = server.get(&admin, path);
        assert_eq!((page.status, page.header("content-type")), (status, "text/html; charset=utf-8"), "{path}");
    }
    let style = page.body.split("href=\"/assets/").nth(2).unwrap().split('"').next().unwrap();
    let style = server.get(&admin, &format!("/assets/{style}"));
    assert!(style.status == 200 && style.header("cache-control").contains("immutable"), "{}", style.head);
    let known = Visitor { headers: format!("if-none-match: {}\r\n", style.header("etag")), ..Visitor::default() };
    assert_eq!(server.get(&known, "/assets/x/app.css").status, 304);
}

#[tokio::test]
async fn an_address_that_cannot_be_read_is_answered_with_a_page() {
    let server = Server::start("");
    let admin = server.admin();
    let long = format!("/sagas/{}", "a".repeat(1_001));
    let pages = [
        "/tasks/%ff",
        "/dead/%ff",
        "/sagas/%ff",
        "/sagas/a%00b",
        "/sagas/%ff/kill",
        "/guards/%ff",
        "/guards/a/rows/%00",
    ];
    for path in pages.into_iter().chain([&*long]) {
        let page = server.get(&admin, path);
        assert_eq!((page.status, page.header("content-type")), (400, "text/html; charset=utf-8"), "{path}");
        assert!(page.has("the path:") && page.has("</html>"), "{path}: {}", page.body);
    }
    for path in [
        "/tasks/%ff/cancel",
        "/dead/7/%ff",
        "/methods/a%00b/pause",
        "/gates/%ff/reset",
        "/sagas/%ff/kill",
        "/sagas/%ff/cancel",
        "/guards/%ff/rows/1/success",
        "/channels/%ff/test",
    ] {
        let page = server.post(&admin, path, &[]);
        assert!(page.status == 400 && page.has("the path:") && page.has("</html>"), "{path}: {}", page.body);
    }
    assert_eq!(server.get(&Visitor::default(), "/tasks/%ff").status, 303, "to the log-in");
    let file = server.get(&admin, "/assets/x/%ff");
    assert_eq!((file.status, file.header("content-type")), (400, "application/problem+json"));
}

#[tokio::test]
async fn many_are_redriven_by_filter_with_and_without_a_script() {
    let server = Server::start("");
    fill(&server, 20).await;
    let admin = server.admin();
    let ask = "/dead/bulk?action=redrive&which=filter&method=fails&last=1h";
    let page = server.get(&admin, ask);
    assert!(page.body.contains("Redrive 20 dead letters?"), "{}", page.body);
    let form =
        [("csrf", page.csrf()), ("action", "resolve"), ("which", "filter"), ("method", "fails"), ("rate", "1000")];
    let script = Visitor { headers: "accept: application/x-ndjson\r\n".into(), ..admin.clone() };
    let wrong = server.post(&script, "/dead/bulk", &[("csrf", page.csrf()), ("action", "redrive")]);
    assert!(wrong.json()["detail"].as_str().unwrap().contains("nothing is selected"), "{}", wrong.body);
    let done = server.post(&admin, "/dead/bulk", &form);
    assert!(done.status == 200 && done.body.contains("<dt>Done</dt><dd>20</dd>"), "{}", done.body);
    fill(&server, 5).await;
    let lines = server.post(&script, "/dead/bulk", &form).body;
    assert!(lines.contains("\"state\":\"finished\"") && lines.contains("\"done\":5"), "{lines}");
}
