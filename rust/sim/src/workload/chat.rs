//! Chats: many of one request, others that grow by a message at a time.

use crate::workload::Workload;
use crate::workload::plan::{Context, Plan};

pub(super) fn plan(workload: &Workload, plan: &mut Plan) {
    let chats = &workload.chats;
    let mut dice = plan.dice();
    let mut prefix = || {
        let tokens = dice.draw(&chats.prefix_tokens);
        plan.grow(Context::EMPTY, tokens)
    };
    let applications: Vec<Context> = (0..chats.applications.max(1)).map(|_| prefix()).collect();
    for _ in 0..chats.sessions {
        let (number, mut dice, mut now_ms) = plan.session();
        let application = applications[dice.popular(applications.len())];
        let opening = dice.draw(&chats.opening_tokens);
        let mut context = plan.grow(application, opening);
        let turns = if dice.chance(chats.one_shot_permille) {
            1
        } else {
            dice.draw(&chats.turns)
        };
        for _ in 0..turns {
            if plan.is_over(now_ms) {
                break;
            }
            let mut output = dice.draw(&chats.output_tokens);
            now_ms = plan.send(now_ms, number, context, output);
            if dice.chance(chats.again_permille) {
                now_ms = now_ms.saturating_add(dice.draw(&chats.think_ms));
                output = dice.draw(&chats.output_tokens);
                now_ms = plan.send(now_ms, number, context, output);
            }
            now_ms = now_ms.saturating_add(dice.draw(&chats.think_ms));
            let message = dice.draw(&chats.message_tokens);
            context = plan.grow(context, output.saturating_add(message));
        }
    }
}
