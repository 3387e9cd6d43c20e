"""Who looks on while something is computed: observers of spans, which never write to stdout."""
