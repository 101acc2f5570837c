//! Agentic sessions: tool loops on growing contexts, with sub-agents, rewinds and compaction.

use crate::workload::dice::Dice;
use crate::workload::plan::{Context, Plan};
use crate::workload::{Agents, Spread, Workload};

/// What all sessions of a project start from.
#[derive(Debug, Clone, Copy)]
struct Project {
    agent: Context,
    subagent: Context,
}

/// One session while it runs.
struct Session<'a> {
    agents: &'a Agents,
    plan: &'a mut Plan,
    dice: Dice,
    number: u64,
    project: Project,
    now_ms: u64,
}

pub(super) fn plan(workload: &Workload, plan: &mut Plan) {
    let agents = &workload.agents;
    let mut dice = plan.dice();
    let mut project = || {
        let mut prefix = |spread| {
            let tokens = dice.draw(spread);
            plan.grow(Context::EMPTY, tokens)
        };
        Project {
            agent: prefix(&agents.prefix_tokens),
            subagent: prefix(&agents.subagent_prefix_tokens),
        }
    };
    let projects: Vec<Project> = (0..agents.projects.max(1)).map(|_| project()).collect();
    for _ in 0..agents.sessions {
        let (number, mut dice, now_ms) = plan.session();
        let project = projects[dice.popular(projects.len())];
        let session = Session {
            agents,
            plan,
            dice,
            number,
            project,
            now_ms,
        };
        session.run();
    }
}

impl Session<'_> {
    fn run(mut self) {
        let mut context = self.project.agent;
        for _ in 0..self.dice.draw(&self.agents.turns) {
            if self.plan.is_over(self.now_ms) {
                return;
            }
            let before = context;
            context = self.turn(context);
            self.wait(&self.agents.think_ms);
            if self.dice.chance(self.agents.rewind_permille) {
                context = before;
            }
        }
    }

    /// The user's message and the loop of requests that it starts.
    fn turn(&mut self, mut context: Context) -> Context {
        let message = self.dice.draw(&self.agents.message_tokens);
        context = self.plan.grow(context, message);
        let steps = self.dice.draw(&self.agents.steps).max(1);
        for step in 1..=steps {
            if self.plan.is_over(self.now_ms) {
                break;
            }
            if context.tokens >= u64::from(self.agents.compact_at_tokens) {
                context = self.compact(context);
            }
            context = self.request(context);
            if step < steps {
                let delegate = self.dice.chance(self.agents.delegate_permille);
                if delegate {
                    self.delegate();
                } else {
                    self.wait(&self.agents.tool_ms);
                }
                let result = self.dice.draw(&self.agents.result_tokens);
                context = self.plan.grow(context, result);
            }
        }
        context
    }

    fn wait(&mut self, spread: &Spread) {
        self.now_ms = self.now_ms.saturating_add(self.dice.draw(spread));
    }

    /// One request and its answer.
    fn request(&mut self, context: Context) -> Context {
        let output = self.dice.draw(&self.agents.output_tokens);
        self.now_ms = self.plan.send(self.now_ms, self.number, context, output);
        self.plan.grow(context, output)
    }

    /// Sub-agents side by side; goes on when the last of them is done.
    fn delegate(&mut self) {
        let start_ms = self.now_ms;
        let mut end_ms = start_ms;
        for _ in 0..self.dice.draw(&self.agents.subagents) {
            self.now_ms = start_ms;
            let task = self.dice.draw(&self.agents.message_tokens);
            let mut context = self.plan.grow(self.project.subagent, task);
            for _ in 0..self.dice.draw(&self.agents.subagent_steps) {
                if self.plan.is_over(self.now_ms) {
                    break;
                }
                context = self.request(context);
                self.wait(&self.agents.tool_ms);
                let result = self.dice.draw(&self.agents.result_tokens);
                context = self.plan.grow(context, result);
            }
            end_ms = end_ms.max(self.now_ms);
        }
        self.now_ms = end_ms;
    }

    /// Asks for a summary of the context, and starts again from it.
    fn compact(&mut self, context: Context) -> Context {
        let summary = self.dice.draw(&self.agents.summary_tokens);
        self.now_ms = self.plan.send(self.now_ms, self.number, context, summary);
        self.plan.grow(self.project.agent, summary)
    }
}
