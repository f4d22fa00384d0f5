//! Every word of every page, in English and Chinese. `{0}`, `{1}` are what [`fill`] puts in. Both languages have every word, or it
//! does not compile; a word that nobody uses is a warning.

use std::fmt::Display;

use axum::http::HeaderValue;

/// A language of the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lang {
    En,
    Zh,
}

impl Lang {
    /// As a person has chosen, else the first that their browser asks for and we have.
    pub(super) fn of(chosen: Option<&str>, accepted: Option<&HeaderValue>) -> Self {
        let accepted = accepted.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let mut wanted: Vec<(&str, f32)> = accepted.split(',').map(weighed).collect();
        wanted.sort_by(|(_, a), (_, b)| b.total_cmp(a)); // a stable sort: among equals the first
        let accepted = wanted.iter().find_map(|(tag, weight)| Self::named(tag).filter(|_| *weight > 0.0));
        chosen.and_then(Self::named).or(accepted).unwrap_or(Self::En)
    }

    /// By its tag: `zh`, `zh-CN`, `en-GB`.
    pub(super) fn named(tag: &str) -> Option<Self> {
        match tag.split('-').next().unwrap_or_default().trim().to_ascii_lowercase().as_str() {
            "en" => Some(Self::En),
            "zh" => Some(Self::Zh),
            _ => None,
        }
    }

    /// As cookies have it.
    pub(super) fn code(self) -> &'static str {
        match self {
            Self::En => "en",
            Self::Zh => "zh",
        }
    }

    /// As HTML has it.
    pub(crate) fn tag(self) -> &'static str {
        match self {
            Self::En => "en",
            Self::Zh => "zh-CN",
        }
    }

    pub(crate) fn words(self) -> &'static Words {
        match self {
            Self::En => &EN,
            Self::Zh => &ZH,
        }
    }
}

/// A language and how much it is wanted: `zh;q=0.8`.
fn weighed(part: &str) -> (&str, f32) {
    let (tag, weight) = part.split_once(';').unwrap_or((part, "q=1"));
    (tag.trim(), weight.trim().strip_prefix("q=").and_then(|q| q.parse().ok()).unwrap_or(1.0))
}

/// A text with its gaps filled.
pub(crate) fn fill(text: &str, with: &[&dyn Display]) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        out += before;
        let gap = after.split_once('}').and_then(|(n, after)| Some((with.get(n.parse::<usize>().ok()?)?, after)));
        match gap {
            Some((value, after)) => {
                out += &value.to_string();
                rest = after;
            }
            None => {
                out.push('{');
                rest = after;
            }
        }
    }
    out + rest
}

macro_rules! words {
    ($($name:ident: $en:literal, $zh:literal;)*) => {
        /// The words of a language.
        #[derive(Debug)]
        pub(crate) struct Words { $(pub(crate) $name: &'static str,)* }
        static EN: Words = Words { $($name: $en,)* };
        static ZH: Words = Words { $($name: $zh,)* };
        #[cfg(test)]
        const ALL: &[(&str, &str, &str)] = &[$((stringify!($name), $en, $zh),)*];
    };
}

words! {
    // The frame.
    skip: "Skip to the content", "跳到正文";
    menu: "Pages", "页面";
    log_out: "Log out", "退出";
    language: "Language", "语言";
    theme: "Theme", "外观";
    theme_auto: "As the system", "跟随系统";
    theme_light: "Light", "浅色";
    theme_dark: "Dark", "深色";
    api_docs: "API", "API 文档";
    role_viewer: "viewer", "只读";
    role_operator: "operator", "操作员";
    role_admin: "admin", "管理员";
    live: "Live", "实时";

    // Logging in.
    login: "Log in", "登录";
    login_lead: "Log in with a token. The first one was shown when the server first started; others are made by an admin:",
        "使用令牌登录。服务首次启动时会显示第一个令牌；其他令牌由管理员创建：";
    login_token: "Token", "令牌";
    login_wrong: "This token is not known, has expired or was revoked.", "令牌无效、已过期或已被吊销。";
    login_wait: "Too many wrong tokens came from your address. Wait a minute.", "来自您地址的错误令牌过多，请等待一分钟。";

    // Problems.
    sorry_404: "There is nothing here", "这里什么也没有";
    sorry_404_do: "It may have ended and not been kept, or the address is wrong. Look for it by its key or business id.",
        "它可能已结束且未保留，或者地址有误。可按键或业务编号查找。";
    sorry_403: "You may not do this", "您没有权限";
    sorry_403_do: "Ask somebody with a token of a higher role, or log in with another one.", "请联系拥有更高权限令牌的人，或换一个令牌登录。";
    sorry_form: "This form cannot be used", "此表单已失效";
    sorry_form_do: "Go back, load the page again and repeat it.", "请返回，重新加载页面后再试。";
    sorry_409: "Something else happened meanwhile", "期间已发生其他变化";
    sorry_409_do: "Go back and look at it again before you repeat this.", "请返回查看最新状态后再操作。";
    sorry_400: "That is not understood", "无法理解该请求";
    sorry_400_do: "Go back and correct what is named below.", "请返回并更正下面指出的内容。";
    sorry_503: "The database does not answer in time", "数据库未及时响应";
    sorry_503_do: "Wait a moment and try again. If it stays so, look at the server's log and at the database.",
        "请稍候重试。若持续如此，请检查服务日志和数据库。";
    sorry_500: "Something went wrong here", "服务内部出错";
    sorry_500_do: "The server's log has the details.", "详情见服务日志。";
    sorry_back: "To the overview", "回到总览";

    // Durations.
    in_days: "{0} d", "{0} 天";
    in_hours: "{0} h", "{0} 小时";
    in_minutes: "{0} min", "{0} 分";
    in_seconds: "{0} s", "{0} 秒";
    in_ms: "{0} ms", "{0} 毫秒";

    // What was just done.
    said_retried: "Task {0} is due now.", "任务 {0} 已设为立即重试。";
    said_cancelled: "Task {0} is cancelled.", "任务 {0} 已取消。";
    said_stop_requested: "Task {0} runs; it ends after this attempt, unless that succeeds.", "任务 {0} 正在执行；本次尝试若未成功，之后即结束。";
    said_failed: "Task {0} is a dead letter now.", "任务 {0} 已转为死信。";
    said_policy_edited: "Task {0} has its new policy.", "任务 {0} 的策略已更新。";
    said_redriven: "It was brought back as task {0}.", "已恢复为任务 {0}。";
    said_twin: "A task with the same key lives already: {0}. The letter stays.", "已有相同键的任务在运行：{0}。死信保留。";
    said_resolved: "Letter {0} is resolved.", "死信 {0} 已标记为解决。";
    said_discarded: "Letter {0} is discarded.", "死信 {0} 已丢弃。";
    said_acknowledged: "You have seen letter {0}.", "已确认看到死信 {0}。";
    said_taken_over: "Letter {0} has an owner.", "死信 {0} 已有负责人。";

    // Overview.
    overview: "Overview", "总览";
    needs_you: "What needs you", "需要处理";
    needs_nobody: "Nothing needs you.", "目前无需处理。";
    first_title: "Enqueue the first task", "提交第一个任务";
    first_lead: "A request that is delivered until it succeeds. Take your own token and address:", "提交一个请求，系统会一直投递直到成功。请换成您自己的令牌和地址：";
    copy: "Copy", "复制";
    copied: "Copied", "已复制";
    need_trouble: "This node does not look for tasks", "本节点未在扫描任务";
    need_trouble_do: "Readiness", "就绪状态";
    need_gate: "The gate of {0} is open: its tasks are held back", "{0} 的闸门已打开：其任务被暂缓";
    need_gate_half: "The gate of {0} is trying a few tasks", "{0} 的闸门正在用少量任务试探";
    need_gate_held: "The gate of {0} is held by a person", "{0} 的闸门被人工保持";
    need_gate_do: "Gates", "闸门";
    need_dead: "{0} dead letters wait for somebody", "{0} 条死信等待处理";
    need_dead_do: "Look at them", "查看";
    need_unhandled: "{0}: no node handles this method; {1} tasks wait", "{0}：没有节点处理此方法；{1} 个任务在等待";
    need_unhandled_why: "Start a process that handles it, or cancel them.", "请启动能处理它的进程，或取消这些任务。";
    need_late: "{0} is behind; {1} tasks", "{0} 已积压；{1} 个任务";
    need_late_why: "The first due task waits since then: its limits are too tight, its handlers are slow, or its gate holds it back.",
        "最早到期的任务自那时起一直在等待：限额过紧、处理过慢，或被闸门暂缓。";
    need_tasks_do: "Its tasks", "查看任务";
    need_paused: "{0} is paused", "{0} 已暂停";
    need_paused_by: "By {0}", "操作人：{0}";
    need_paused_do: "Methods", "方法";
    need_node: "Node {0} died", "节点 {0} 已失联";
    need_node_why: "Others have taken over its tasks.", "其任务已由其他节点接管。";
    need_node_do: "Nodes", "节点";
    rate_in: "In", "进入";
    rate_done: "Done", "完成";
    rate_failed: "Failed attempts", "失败尝试";
    per_minute: "a minute", "每分钟";
    due_now: "Due now", "当前到期";
    oldest: "the oldest", "最早";
    waiting: "Waiting", "等待中";
    running_n: "{0} running", "{0} 个执行中";
    dead: "Dead letters", "死信";
    unowned_n: "{0} without owner", "{0} 条无人负责";
    gates_open: "Gates not closed", "未关闭的闸门";
    nodes_alive: "Nodes alive", "在线节点";
    chart_hour: "The last hour, a minute", "最近一小时（每分钟）";
    chart_day: "The last day, a minute", "最近一天（每分钟）";
    chart_backlog: "Tasks in the store, the last day", "库存任务数（最近一天）";
    methods: "Methods", "方法";
    method: "Method", "方法";
    tasks: "Tasks", "任务";
    oldest_due: "First due", "最早到期";
    no_methods: "There are no tasks and no dead letters.", "没有任务，也没有死信。";

    // Why a task is dead.
    reason_exhausted: "out of attempts", "次数用尽";
    reason_expired: "out of time", "超过时限";
    reason_rejected: "rejected", "被拒绝";
    reason_failed_by_hand: "failed by hand", "人工判失败";
    reason_crashed: "crashed", "多次崩溃";
    reason_undecodable: "unreadable", "无法解析";
}

impl Words {
    /// What a problem is, and what to do about it.
    pub(super) fn sorry(&self, code: &str, status: u16) -> (&'static str, &'static str) {
        let w = self;
        match (code, status) {
            ("wrong_form", _) => (w.sorry_form, w.sorry_form_do),
            (_, 404) => (w.sorry_404, w.sorry_404_do),
            (_, 403) => (w.sorry_403, w.sorry_403_do),
            (_, 409) => (w.sorry_409, w.sorry_409_do),
            (_, 503) => (w.sorry_503, w.sorry_503_do),
            (_, 500) => (w.sorry_500, w.sorry_500_do),
            _ => (w.sorry_400, w.sorry_400_do),
        }
    }

    pub(super) fn reason(&self, reason: redrive::DeadReason) -> &'static str {
        use redrive::DeadReason::{Crashed, Exhausted, Expired, FailedByHand, Rejected, Undecodable};
        match reason {
            Exhausted => self.reason_exhausted,
            Expired => self.reason_expired,
            Rejected => self.reason_rejected,
            FailedByHand => self.reason_failed_by_hand,
            Crashed => self.reason_crashed,
            Undecodable => self.reason_undecodable,
        }
    }

    pub(crate) fn role(&self, role: &redrive::store::Role) -> &'static str {
        use redrive::store::Role::{Admin, Operator, Viewer};
        match role {
            Viewer => self.role_viewer,
            Operator => self.role_operator,
            Admin => self.role_admin,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_languages_have_the_same_gaps() {
        for (name, en, zh) in ALL {
            for gap in ["{0}", "{1}", "{2}", "{3}"] {
                assert_eq!(en.contains(gap), zh.contains(gap), "{name} {gap}");
            }
            assert!(!en.is_empty() && !zh.is_empty(), "{name}");
        }
    }

    #[test]
    fn gaps_are_filled_in_any_order_and_other_braces_stay() {
        assert_eq!(fill("{1} of {0}, {x} {", &[&7, &"a{0}"]), "a{0} of 7, {x} {");
    }

    #[test]
    fn a_person_chooses_before_their_browser() {
        let accepted = |text: &'static str| Lang::of(None, Some(&HeaderValue::from_static(text)));
        assert_eq!(Lang::of(Some("zh"), None), Lang::Zh);
        assert_eq!(Lang::of(Some("tlh"), None), Lang::En);
        assert_eq!(accepted("fr, zh-CN;q=0.8, en;q=0.9"), Lang::En);
        assert_eq!(accepted("zh-TW,zh;q=0.9,en;q=0.8"), Lang::Zh);
        assert_eq!(accepted("zh;q=0, en;q=0.1"), Lang::En);
    }
}
