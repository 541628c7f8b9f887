from offbeat.api.progress_line import format_duration as format_duration
