"""How a judged run looks: HTML, Markdown, timeline, figures. `core/judging/` says what it means."""
