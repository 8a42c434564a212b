"""The parts of serve.py: run the real tritonserver, prove it, watch it, and leave nothing behind.

From the ground up; each imports only from what stands above it here:

    told            what a person hears: messages, and the error that ends with one
    signals         the signals that ask us to end
    processes       processes of this machine
    metrics         what the server's pages say
    this_python     whether this Python can serve
    ports           where the server listens
    options         the command line
    access          who may ask what of it: keys, certificates, closed interfaces
    repository      the models, as the server is to see them
    triton          where the server's program and libraries are
    server_process  its command line, and what it is given before it runs
    server_log      what it says
    model_watch     models whose process has ended
    env_folder      what a killed server leaves in /tmp
    canary          a small request through a model
    canary_watch    the same again and again, and of a server that another process has started
    server          one server, from its start over its proof to its end
    drain           let the sessions that live come to an end
    serving         serve, restart, stop
"""
