//! Every page of the console, with something on it: usable by everybody, in both themes, on a desk and on a phone, by keyboard.

use redrive::store::Role;
use serde_json::json;

use crate::driver::Browser;
use crate::in_time;
use crate::shop::Shop;
use crate::support::Server;

/// Name of its pictures, and path.
type Page = (&'static str, String);

/// Those that a shop's admin can get to. New pages have their place here.
fn pages(shop: &Shop) -> Vec<Page> {
    let page = |name, path: &str| (name, path.to_owned());
    vec![
        page("overview", "/"),
        page("tasks", "/tasks"),
        page("tasks-filter", "/tasks?method=payment.charge"),
        page("tasks-none", "/tasks?method=none"),
        page("tasks-ended", "/tasks/ended"),
        ("task", format!("/tasks/{}", shop.waits)),
        page("tasks-bulk", "/tasks/bulk?action=cancel&which=filter&method=mail.send"),
        page("dead", "/dead"),
        page("dead-filter", "/dead?method=invoice.render&owned=no"),
        ("letter", format!("/dead/{}", shop.letter)),
        page("dead-bulk", "/dead/bulk?action=discard&which=filter&method=payment.charge"),
        page("methods", "/methods"),
        page("sagas", "/sagas"),
        page("sagas-waiting", "/sagas?state=waiting"),
        page("saga-stuck", "/sagas/trip-7012"),
        page("saga-waiting", "/sagas/refund-301"),
        page("saga-succeeded", "/sagas/trip-7001"),
        page("saga-kill", "/sagas/trip-7012/kill"),
        page("guards", "/guards"),
        page("guard", "/guards/Bills"),
        page("guard-row", "/guards/Bills/rows/5010"),
        page("nodes", "/nodes"),
        page("channels", "/channels"),
        page("settings", "/settings"),
        page("setting", "/settings/change?path=defaults.max_attempts&value=7"),
        page("setting-wrong", "/settings/change?path=engine.scan_interval&value=soon"),
        page("audit", "/audit"),
        page("audit-filter", "/audit?who=ada"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_page_can_be_used_by_everybody() {
    in_time(async {
        let shop = Shop::open().await;
        let browser = Browser::open(&shop.server, "en").await;
        browser.go("/login").await;
        check(&browser, "login", &[]).await;
        browser.log_in(&shop.server.token).await;
        for (name, path) in pages(&shop) {
            if name == "methods" {
                shop.is_busy(); // gates tell of the last seconds
            }
            browser.go(&path).await;
            check(&browser, name, &[]).await;
        }
        browser.go("/nothing").await;
        check(&browser, "missing", &["404 (Not Found)"]).await;
        wrong_forms(&shop, &browser).await;
        browser.close().await;
        shop.close().await;
    })
    .await;
}

/// Forms that are shown again, with what was typed and why it is not taken.
async fn wrong_forms(shop: &Shop, browser: &Browser) {
    let expected = ["400 (Bad Request)"];
    browser.go("/tasks?from=yesterday").await;
    check(browser, "tasks-wrong", &expected).await;
    let forms = [
        ("task-wrong", format!("/tasks/{}", shop.waits), "policy"),
        ("saga-wrong-output", "/sagas/trip-7012".into(), "output"),
        ("saga-wrong-input", "/sagas/refund-301".into(), "input"),
    ];
    for (name, path, field) in forms {
        browser.go(&path).await;
        let send = format!(
            "const text = document.querySelector('textarea[name={field}]'); text.value = '{{oops}}'; text.form.submit()"
        );
        browser.js(&send).await;
        browser.until("document.querySelector('[role=alert]')").await;
        let kept =
            browser.js(&format!("return document.querySelector('textarea[name={field}][aria-invalid]')?.value")).await;
        assert_eq!(kept, "{oops}", "{name}");
        check(browser, name, &expected).await;
    }
}

/// The same in Chinese, as a viewer sees it.
#[tokio::test(flavor = "multi_thread")]
async fn every_page_that_viewers_see_can_be_used_in_chinese() {
    in_time(async {
        let shop = Shop::open().await;
        let (token, _) = shop.server.new_token("eve", Role::Viewer).await;
        let browser = Browser::open(&shop.server, "zh-CN").await;
        browser.log_in(&token).await;
        let hidden = ["tasks-bulk", "dead-bulk", "saga-kill", "guard-row", "settings", "setting", "setting-wrong"];
        for (name, path) in pages(&shop) {
            if !hidden.contains(&name) && !name.starts_with("audit") {
                browser.go(&path).await;
                check(&browser, &format!("zh-{name}"), &[]).await;
            }
        }
        browser.close().await;
        shop.close().await;
    })
    .await;
}

/// Pages that have nothing to show yet say what comes next.
#[tokio::test(flavor = "multi_thread")]
async fn empty_pages_can_be_used_by_everybody() {
    in_time(async {
        let server = Server::start("");
        let browser = Browser::open(&server, "en").await;
        browser.log_in(&server.token).await;
        for page in
            ["", "tasks", "tasks/ended", "dead", "methods", "sagas", "guards", "nodes", "channels", "settings", "audit"]
        {
            browser.go(&format!("/{page}")).await;
            check(
                &browser,
                &format!("empty-{}", if page.is_empty() { "overview".into() } else { page.replace('/', "-") }),
                &[],
            )
            .await;
        }
        browser.close().await;
    })
    .await;
}

/// Looks at the page as it is; `expected` is what the browser may say of it.
async fn check(browser: &Browser, name: &str, expected: &[&str]) {
    for theme in ["light", "dark"] {
        for width in [1280, 375] {
            browser.look(width, theme).await;
            let wrong = browser.js(include_str!("check.js")).await;
            assert_eq!(wrong, json!([]), "{name}, {theme}, {width} px");
            browser.picture(&format!("{name}-{theme}-{width}")).await;
        }
    }
    let complaints = browser.complaints().await;
    let bad: Vec<_> = complaints.iter().filter(|said| !expected.iter().any(|known| said.contains(known))).collect();
    assert_eq!(bad, [""; 0], "{name}");
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_reached_by_keyboard_and_shows_where_one_is() {
    in_time(async {
        let shop = Shop::open().await;
        let browser = Browser::open(&shop.server, "en").await;
        browser.log_in(&shop.server.token).await;
        for (name, path) in pages(&shop) {
            browser.go(&path).await;
            browser.js(include_str!("keyboard.js")).await;
            browser.tab().await;
            let skip = browser.js("return document.activeElement.className").await;
            assert_eq!(skip, "skip", "{name}: first of all comes the way past the menu");
            let controls = browser.js("return window.controls.length").await.as_u64().unwrap();
            for _ in 0..controls {
                browser.tab().await;
            }
            let wrong = browser.js("return window.missed()").await;
            assert_eq!(wrong, json!([]), "{name}");
        }
        browser.close().await;
        shop.close().await;
    })
    .await;
}
